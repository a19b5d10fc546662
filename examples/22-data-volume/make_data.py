"""Writes a data set of images into a folder, once: make_data.py FOLDER"""

import sys

import numpy as np

IMAGES, PIECES = 6000, 4


def main(folder):
    generator = np.random.default_rng(0)
    for piece in range(PIECES):
        images = generator.integers(0, 256, (IMAGES // PIECES, 16, 16), dtype=np.uint8)
        np.save(f"{folder}/images-{piece}.npy", images)
        np.save(f"{folder}/labels-{piece}.npy", images.mean((1, 2)) > images.mean())


if __name__ == "__main__":
    main(sys.argv[1])
