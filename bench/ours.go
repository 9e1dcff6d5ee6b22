package main

import (
	"context"
	"errors"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

// oursDraining measures the forwarder on a backlog of n messages, from the moment it owns its lanes until all are
// settled.
func (b *bench) oursDraining(
	n int, cfg forwarder.Config, to func(n int) (*sink, error),
) func(context.Context) (measured, error) {
	return func(ctx context.Context) (measured, error) {
		d, err := b.newDatabase(ctx)
		if err != nil {
			return measured{}, err
		}
		defer d.drop()
		if err := d.backlog(ctx, n); err != nil {
			return measured{}, err
		}
		s, err := to(n)
		if err != nil {
			return measured{}, err
		}
		f, stop, err := d.forward(ctx, s, cfg)
		if err != nil {
			return measured{}, err
		}
		defer stop()
		begun := time.Now()
		if err := s.wait(ctx); err != nil {
			return measured{}, err
		}
		if err := f.Drain(ctx); err != nil {
			return measured{}, err
		}
		took := time.Since(begun)
		return measured{value: perSecond(n, took)}, errors.Join(stop(), s.check(), d.settled(ctx))
	}
}

// forward runs a forwarder and returns when it owns its lanes. stop may be called twice.
func (d *database) forward(
	ctx context.Context, s *sink, cfg forwarder.Config,
) (*forwarder.Forwarder, func() error, error) {
	f, err := forwarder.New(d.db, s, cfg, nil)
	if err != nil {
		return nil, nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	select {
	case <-f.Running():
	case err := <-ended:
		return nil, nil, err
	}
	var runErr error
	stopped := false
	return f, func() error {
		if !stopped {
			stopped = true
			runErr = errors.Join(f.Close(), <-ended)
		}
		return runErr
	}, nil
}

func perSecond(n int, took time.Duration) float64 { return float64(n) / took.Seconds() }
