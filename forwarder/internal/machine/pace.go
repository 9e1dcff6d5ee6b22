package machine

import "time"

// Pace keeps what is slow, and repeated, to about a twentieth of the time: it rests for twenty times as long as that
// took, or as it usually takes if that is less. So what is slow every second time gets a tenth. What was slow once may
// have met a machine that stood still, and a minute of rest after three seconds of that would not help.
type Pace struct{ usual time.Duration } // an average in which the last ones count most

// Rest says for how long to rest after something that took so long.
func (p *Pace) Rest(took time.Duration) time.Duration {
	least := min(took, p.usual)
	p.usual = (3*p.usual + took) / 4
	return 20 * least
}
