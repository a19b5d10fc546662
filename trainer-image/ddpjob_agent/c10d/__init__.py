"""Server and client of the protocol of torch's TCPStore."""
