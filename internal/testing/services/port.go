package services

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// freePort finds a port without a listener. It stays below the range from which systems take the local ports of
// outgoing connections: otherwise a client that keeps reconnecting to a stopped server sooner or later is given that
// very port, connects to itself, and the server cannot come back. Another process can still be quicker, so callers
// try again with a new port.
func freePort() (int, error) {
	var err error
	for range 100 {
		port := 15000 + rand.IntN(17000)
		var l net.Listener
		if l, err = net.Listen("tcp", address(port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("find a free port: %w", err)
}

func address(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
