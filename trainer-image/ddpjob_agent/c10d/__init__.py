"""The protocol of torch's TCPStore, served and spoken."""
