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

// process tells the pools of this process from those of others.
var process = uuid.NewString()

// program is the package of the main function of this process, which the replicas of a service have in common.
var program = sync.OnceValue(func() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Path != "" {
		return info.Path
	}
	return filepath.Base(os.Args[0])
})

// tell writes what the forwarder says of itself if it says something else than before.
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

// ownTime lets the database note how far the two clocks are apart: the times in facts are by this one.
func ownTime() float64 { return float64(time.Now().UnixMicro()) / 1e6 }

// facts is what the forwarder says of itself for admin.Doctor, as JSON.
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
	b, _ := json.Marshal(f) // it always can be
	return string(b)
}
