package forwarder

import "time"

// pace keeps what is repeated to a twentieth of the time. What was slow once may have met a machine that stood still, and a
// minute of rest after three seconds of that would help nobody: only what is slow twice in a row rests.
type pace struct{ last time.Duration }

// rest says for how long to rest after something that took so long.
func (p *pace) rest(took time.Duration) time.Duration {
	least := min(took, p.last)
	p.last = took
	return 20 * least
}
