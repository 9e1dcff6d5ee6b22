package forwarder

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/internal/facts"
)

// process distinguishes the pools of this process from those of others.
var process = uuid.NewString()

// program is the package of this process's main function, which all replicas of a service share.
var program = sync.OnceValue(func() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Path != "" {
		return info.Path
	}
	return filepath.Base(os.Args[0])
})

// tell writes the facts about this forwarder if they have changed.
func (k *keeper) tell(ctx context.Context) error {
	says := k.e.facts()
	if says == k.told {
		return nil
	}
	if _, err := k.q.Exec(ctx, k.e.sql.tell, k.e.owner, says, ownTime()); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	k.told = says
	return nil
}

// ownTime lets the database record the difference between the two clocks: times in facts are by this process's clock.
func ownTime() float64 { return float64(time.Now().UnixMicro()) / 1e6 }

// facts returns facts about this forwarder for admin.Doctor, as JSON.
func (e *engine) facts() string {
	conns, hung := e.db.Conns(), 0
	e.step(func(_ time.Time, m *machine.Machine) { hung = m.Hung() })
	f := facts.Forwarder{
		Program: program(), Consumers: e.db.Consumers(), Blocked: e.db.Blocked(),
		Pool: fmt.Sprintf("%s %p", process, e.db.Pool()), PoolConns: conns.Max, PoolNeeds: conns.Needs,
		Handlers: e.db.MostHandlers(), Beside: conns.Beside,
		Hung: hung, Blind: e.to != nil && e.to.blind.Load(), BlockKeyOnDead: e.cfg.BlockKeyOnDead,
		LeaseTTL: e.cfg.LeaseTTL, PublishTimeout: e.cfg.PublishTimeout, CloseTimeout: e.cfg.CloseTimeout,
		Retention: e.cfg.Retention, InboxRetention: e.cfg.InboxRetention,
	}
	if e.cfg.DisableListen && f.Beside > 0 {
		f.Beside--
	}
	if e.pooled {
		f.Beside = 0
	}
	b, _ := json.Marshal(f) // it can always be encoded
	return string(b)
}
