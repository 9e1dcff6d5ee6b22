package forwarder

import (
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"github.com/millrace-go/watermill-outbox/internal/facts"
)

// process tells the pools of this process from those of others.
var process = uuid.NewString()

// facts is what the forwarder says of itself for admin.Doctor, as JSON.
func (e *engine) facts() string {
	conns := e.db.Conns()
	f := facts.Forwarder{
		Pool: fmt.Sprintf("%s %p", process, e.db.Pool()), PoolConns: conns.Max, PoolNeeds: conns.Needs, Beside: conns.Beside,
		Blind: e.blind, HoldDead: e.cfg.HoldDead,
		LeaseTTL: e.cfg.LeaseTTL, PublishTimeout: e.cfg.PublishTimeout, CloseTimeout: e.cfg.CloseTimeout, Retention: e.cfg.Retention,
	}
	if e.cfg.DisableListen && f.Beside > 0 {
		f.Beside--
	}
	if e.cfg.pooled {
		f.Beside = 0
	}
	b, _ := json.Marshal(f) // it always can be
	return string(b)
}
