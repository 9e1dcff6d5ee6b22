package demo

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// busyTimeout is how long a forwarder may take to get busy. Behind Kafka, sarama needs up to 10 s to notice that the
// broker is back.
const busyTimeout = 15 * time.Second

// chaos makes the day a bad one, at fixed points of the stream of orders, when all processes are busy.
func (d *day) chaos(ctx context.Context, orders int, outage time.Duration) error {
	if err := d.untilSent(ctx, orders/4); err != nil {
		return err
	}
	if err := d.breakBroker(ctx, outage); err != nil {
		return err
	}
	if err := d.untilSent(ctx, orders*6/10); err != nil {
		return err
	}
	return d.replaceForwarder(ctx)
}

func (d *day) breakBroker(ctx context.Context, outage time.Duration) error {
	if err := d.broker.TakeAway(); err != nil {
		return fmt.Errorf("stop the broker: %w", err)
	}
	d.screen.say("BROKER IS DOWN: no order arrives and no event is published until it is back")
	if err := pause(ctx, outage); err != nil {
		return err
	}
	if err := d.broker.BringBack(ctx); err != nil {
		return fmt.Errorf("start the broker: %w", err)
	}
	d.screen.say("broker is back; the clients resume when they notice")
	return nil
}

// replaceForwarder kills the forwarder process in the middle of its work.
func (d *day) replaceForwarder(ctx context.Context) error {
	old := d.forwarder
	before, err := d.workOf(ctx, old)
	if err != nil {
		return err
	}
	now := before
	patient, cancel := context.WithTimeout(ctx, busyTimeout)
	defer cancel()
	err = until(patient, func() (busy bool, err error) {
		now, err = d.workOf(ctx, old)
		return now.published > before.published && now.waiting > 0, err
	})
	if err != nil && patient.Err() == nil {
		return err
	}
	old.kill()
	d.screen.say("FORWARDER %d IS KILLED (SIGKILL), with %d of 64 lanes and %d events to publish",
		old.pid(), now.lanes, now.waiting)

	replacement, err := startForwarder(d.at, d.log)
	if err != nil {
		return err
	}
	d.forwarder = replacement
	if err := d.untilLanes(ctx, d.forwarder); err != nil {
		return err
	}
	d.screen.say("forwarder %d takes its place", d.forwarder.pid())
	return nil
}

// work is the load of a forwarder: its lanes, and the messages in them.
type work struct{ lanes, waiting, published int }

// workOf reads the work from the database, where the name of a forwarder ends in the id of its process.
func (d *day) workOf(ctx context.Context, p *forwarderProcess) (w work, err error) {
	err = d.pool.QueryRow(ctx, `
		with owned as (
			select l.lane from outbox_lanes l join outbox_forwarders f on f.id = l.owner where f.name like '%:' || $1::text)
		select (select count(*) from owned), count(*) filter (where published_at is null), count(published_at)
		  from outbox where lane in (select lane from owned)`,
		fmt.Sprint(p.pid())).Scan(&w.lanes, &w.waiting, &w.published)
	return w, err
}

// untilLanes waits until the process has its share of the lanes, which is half of them.
func (d *day) untilLanes(ctx context.Context, p *forwarderProcess) error {
	err := until(ctx, func() (bool, error) {
		select {
		case <-p.exited:
			return false, errors.New("it has ended")
		default:
		}
		w, err := d.workOf(ctx, p)
		return w.lanes == 32, err
	})
	if err != nil {
		return fmt.Errorf("wait for forwarder process %d to get its lanes: %w", p.pid(), err)
	}
	return nil
}

func (d *day) untilSent(ctx context.Context, n int) error {
	return until(ctx, func() (bool, error) { return int(d.sent.Load()) >= n, nil })
}

// until polls until done is true.
func until(ctx context.Context, done func() (bool, error)) error {
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
