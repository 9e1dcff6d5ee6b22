package integration_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// cuttingProxy stands between a client and Postgres and cuts the connection at an exact point.
type cuttingProxy struct {
	url string

	cutAtCommitted atomic.Bool            // the server has answered COMMIT: the client never hears of it
	cutAtCommit    atomic.Bool            // the client sends the word COMMIT: the server never gets it
	cutAtNext      atomic.Bool            // the client sends anything: the server never gets it
	cutAtAnswer    atomic.Pointer[string] // the server answers with it: the client never hears of it
	cuts           atomic.Int64

	flow sync.RWMutex // held by freeze
}

// freeze lets connections stand, but nothing through, until thaw.
func (p *cuttingProxy) freeze() { p.flow.Lock() }
func (p *cuttingProxy) thaw()   { p.flow.Unlock() }

// pass waits while the proxy is frozen.
func (p *cuttingProxy) pass() {
	p.flow.RLock()
	defer p.flow.RUnlock()
}

func newCuttingProxy(t testing.TB, database string) *cuttingProxy {
	t.Helper()
	p := &cuttingProxy{}
	p.url = startProxy(t, database, p.toServer, p.toClient)
	return p
}

func (p *cuttingProxy) toServer(server, client net.Conn, _ <-chan struct{}) {
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if n > 0 {
			p.pass()
			if p.cutAtNext.CompareAndSwap(true, false) ||
				(bytes.Contains(bytes.ToLower(buf[:n]), []byte("commit")) && p.cutAtCommit.CompareAndSwap(true, false)) {
				p.cuts.Add(1)
				return
			}
			if _, err := server.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// toClient passes on whole messages.
func (p *cuttingProxy) toClient(client, server net.Conn, _ <-chan struct{}) {
	for {
		whole, err := serverMessage(server)
		if err != nil {
			return
		}
		p.pass()
		if whole[0] == 'C' && string(whole[5:]) == "COMMIT\x00" && p.cutAtCommitted.CompareAndSwap(true, false) {
			p.cuts.Add(1)
			return
		}
		if word := p.cutAtAnswer.Load(); word != nil && (whole[0] == 'D' || whole[0] == 'C') &&
			bytes.Contains(whole, []byte(*word)) && p.cutAtAnswer.CompareAndSwap(word, nil) {
			p.cuts.Add(1)
			return
		}
		if _, err := client.Write(whole); err != nil {
			return
		}
	}
}

// serverMessage reads what a server says at once: a type byte, and a length that counts itself and what follows.
func serverMessage(server io.Reader) ([]byte, error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(server, head); err != nil {
		return nil, err
	}
	whole := append(head, make([]byte, binary.BigEndian.Uint32(head[1:])-4)...)
	_, err := io.ReadFull(server, whole[5:])
	return whole, err
}
