package forwarder

import "github.com/ThreeDotsLabs/watermill/message"

// link is what a publisher has that can say whether it has a connection, as those of watermill-amqp can.
type link interface{ IsConnected() bool }

// linkOf returns the link of a publisher, and nil if it has none. It looks behind no decorator but WithVerdicts: one
// may hold another publisher by the time that it is asked.
func linkOf(pub message.Publisher) link {
	if c, ok := pub.(*classified); ok {
		return linkOf(c.Publisher)
	}
	l, _ := pub.(link)
	return l
}
