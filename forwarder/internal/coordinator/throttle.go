package coordinator

import "time"

// Throttle limits slow, repeated work to about a twentieth of the time: it rests for twenty times as long as the work
// took, or as it usually takes if that is less. So work that is slow every second time gets a tenth. A single slow run
// may have been caused by a machine that stood still, and a minute of rest after three seconds of that would not help.
type Throttle struct{ usual time.Duration } // an average in which the last ones count most

// Rest returns how long to rest after work that took the given time.
func (p *Throttle) Rest(took time.Duration) time.Duration {
	least := min(took, p.usual)
	p.usual = (3*p.usual + took) / 4
	return 20 * least
}
