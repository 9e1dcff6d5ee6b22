package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

const (
	openTimeout = 10 * time.Second
	openGrace   = time.Second // for a call of Config.Open to return after its context has ended
	openAtOnce  = 8           // concurrent calls of Config.Open
)

// Cause: Config.Open ignores its context.
// Cure: return when the context ends.
var errOpenHangs = fmt.Errorf("the call of Open did not return within %s: it is not called again until it does",
	openTimeout)

// opened is an open handle. It stays open while it is in use, even after the fleet has removed it.
type opened struct {
	target Target
	db     *outbox.DB
	close  func()
	users  int // guarded by Fleet.mu; includes the fleet itself
}

// member is a target of the fleet and its handle.
type member struct {
	*opened
	gone chan struct{}
}

// Handle is a handle that stays open until it is released. Its methods are safe for concurrent use.
type Handle struct {
	*member
	release func()
}

// DB returns the handle.
func (h *Handle) DB() *outbox.DB { return h.db }

// Done returns a channel that is closed when the target is removed or changed, or the fleet ends. The handle still
// works: finish, and call Acquire for a new one.
func (h *Handle) Done() <-chan struct{} { return h.gone }

// Release ends the use of the handle. Only the first call has an effect.
func (h *Handle) Release() { h.release() }

// Acquire returns a handle that stays open until Handle.Release, for long work. It returns ErrUnknownDatabase for a key
// that the last discovery did not return, and outbox.ErrClosed after the end of Run.
func (f *Fleet) Acquire(key string) (*Handle, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, err := f.find(key)
	if err != nil {
		return nil, err
	}
	m.users++
	return &Handle{m, sync.OnceFunc(func() { f.release(m.opened) })}, nil
}

// Get returns the handle of a target for short use: if the target is removed, a running transaction may finish, and
// later use fails. It returns the same handle until the target changes. Errors are those of Acquire.
func (f *Fleet) Get(key string) (*outbox.DB, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, err := f.find(key)
	if err != nil {
		return nil, err
	}
	return m.db, nil
}

// find returns a member. mu must be held.
func (f *Fleet) find(key string) (*member, error) {
	if f.ended || f.life.Over() {
		return nil, outbox.ErrClosed
	}
	if m := f.members[key]; m != nil {
		return m, nil
	}
	if err := f.faults[key]; err != nil {
		return nil, fmt.Errorf("%w: %q was discovered and cannot be used: %w", ErrUnknownDatabase, key, err)
	}
	if f.keys == nil {
		return nil, fmt.Errorf("%w: %q: no discovery yet: wait for Running", ErrUnknownDatabase, key)
	}
	return nil, fmt.Errorf("%w: %q is not among the %d that the last discovery returned", ErrUnknownDatabase,
		key, len(f.keys))
}

// release ends one use of a handle, and closes the handle after the last.
func (f *Fleet) release(o *opened) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o.users--; o.users > 0 {
		return
	}
	delete(f.open, o.target)
	go func() {
		defer f.background.Done()
		if err := shielded(o.close); err != nil {
			// Cause: the close function of Config.Open failed.
			// Cure: connections may stay open until the process ends.
			f.logger.Error("closing a handle failed", err, watermill.LogFields{"db": o.target.Key})
		}
	}()
}

// openAll opens the missing handles. The fleet counts as a user of each handle that it returns.
func (f *Fleet) openAll(ctx context.Context, wanted map[string]Target) (map[string]*opened, map[string]error) {
	all, failed := map[string]*opened{}, map[string]error{}
	var mu sync.Mutex // guards both
	var opening sync.WaitGroup
	slots := make(chan struct{}, openAtOnce)
	for key, t := range wanted {
		f.mu.Lock()
		m, old := f.members[key], f.open[t]
		if old != nil && (m == nil || m.opened != old) {
			old.users++ // the target is back, and its handle still in use
			all[key] = old
		}
		f.mu.Unlock()
		if old != nil {
			continue
		}
		slots <- struct{}{}
		opening.Go(func() {
			defer func() { <-slots }()
			o, err := f.openOne(ctx, t)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[key] = err
				return
			}
			all[key] = o
		})
	}
	opening.Wait()
	return all, failed
}

func (f *Fleet) openOne(ctx context.Context, t Target) (*opened, error) {
	if f.cfg.Open != nil {
		o, err := f.openOwn(ctx, t)
		if err != nil {
			return nil, fmt.Errorf("Config.Open: %w", err)
		}
		return o, nil
	}
	db, closeIt, err := f.openDSN(t)
	if err != nil {
		return nil, err
	}
	return f.keep(t, db, closeIt), nil
}

// keep registers an open handle.
func (f *Fleet) keep(t Target, db *outbox.DB, closeIt func()) *opened {
	o := &opened{target: t, db: db, close: closeIt, users: 1}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open[t] = o
	f.background.Add(1)
	return o
}

// openOwn opens a handle with Config.Open. A call that does not return in time is abandoned, so that it does not delay
// other targets, and is not repeated before it returns.
func (f *Fleet) openOwn(ctx context.Context, t Target) (*opened, error) {
	f.mu.Lock()
	hangs := f.opening[t]
	f.opening[t] = true
	f.mu.Unlock()
	if hangs {
		return nil, errOpenHangs
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	type answer struct {
		*opened
		err error
	}
	answers, given := make(chan answer), make(chan struct{})
	f.background.Go(func() {
		defer cancel()
		var db *outbox.DB
		var closeIt func()
		var err error
		panicked := shielded(func() { db, closeIt, err = f.cfg.Open(ctx, t) })
		err = errors.Join(panicked, err)
		if err == nil && db == nil {
			err = outbox.ErrNoDB
		}
		var o *opened
		if err == nil {
			o = f.keep(t, db, closeIt)
		}
		f.mu.Lock()
		delete(f.opening, t)
		f.mu.Unlock()
		select {
		case answers <- answer{o, err}:
		case <-given:
			if o != nil {
				f.release(o)
			}
		}
	})
	select {
	case a := <-answers:
		return a.opened, a.err
	case <-ctx.Done():
	}
	timer := time.NewTimer(openGrace)
	defer timer.Stop()
	select {
	case a := <-answers:
		return a.opened, a.err
	case <-timer.C:
		close(given)
		return nil, errOpenHangs
	}
}

// shielded calls user code and recovers from its panics.
func shielded(fn func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = core.Panicked(p)
		}
	}()
	if fn != nil {
		fn()
	}
	return nil
}
