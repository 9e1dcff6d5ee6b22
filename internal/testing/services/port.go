package services

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// freePort returns a port without a listener. It stays below the range that systems use for the local ports of outgoing
// connections. Otherwise a client that keeps reconnecting to a stopped server would sooner or later get that very port,
// connect to itself, and prevent the server from restarting. Another process can still be faster, so callers retry with
// a new port.
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
