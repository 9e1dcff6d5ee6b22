package inbox

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// troubleInterval is how often an error is logged that goes on.
const troubleInterval = 30 * time.Second

// trouble logs what fails again and again: at the first time, now and then, and when it is over. One goroutine uses it.
type trouble struct {
	logger watermill.LoggerAdapter
	what   string
	last   time.Time // zero = there is none
}

func (t *trouble) tell(err error) {
	switch {
	case err == nil && !t.last.IsZero():
		t.last = time.Time{}
		t.logger.Info(t.what+" works again", nil)
	case err != nil && time.Since(t.last) >= troubleInterval:
		t.last = time.Now()
		t.logger.Error(t.what+" failed; it is repeated", err, nil)
	}
}
