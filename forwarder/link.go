package forwarder

import "github.com/ThreeDotsLabs/watermill/message"

// link is implemented by publishers that know whether they are connected, such as those of watermill-amqp.
type link interface{ IsConnected() bool }

// linkOf returns the link of a publisher, or nil if it has none. WithVerdicts is the only decorator that it looks
// behind, because others may replace the publisher that they wrap.
func linkOf(pub message.Publisher) link {
	if c, ok := pub.(*classified); ok {
		return linkOf(c.Publisher)
	}
	l, _ := pub.(link)
	return l
}
