package services

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
)

// running holds everything to close at the end of the run, oldest first.
var running struct {
	sync.Mutex
	closers []io.Closer
}

func register(c io.Closer) {
	running.Lock()
	defer running.Unlock()
	running.closers = append(running.closers, c)
}

func unregister(c io.Closer) {
	running.Lock()
	defer running.Unlock()
	running.closers = slices.DeleteFunc(running.closers, func(o io.Closer) bool { return o == c })
}

// StopAll closes every server that was started here and is not closed yet, newest first, and returns all errors. It is
// safe to call at any time and more than once.
func StopAll() error {
	var errs []error
	for {
		running.Lock()
		n := len(running.closers)
		if n == 0 {
			running.Unlock()
			return errors.Join(errs...)
		}
		c := running.closers[n-1]
		running.closers = running.closers[:n-1]
		running.Unlock()
		errs = append(errs, c.Close())
	}
}

// StopOnSignal makes an interrupt or SIGTERM close all servers and then end this process with status 128 plus the
// signal's number; a second signal ends it immediately. The returned function calls [StopAll] and undoes StopOnSignal;
// call it at the end of main or TestMain, before os.Exit.
func StopOnSignal() (stop func() error) {
	signals := make(chan os.Signal, 1)
	undone := make(chan struct{})
	finished := make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		defer close(finished)
		select {
		case <-undone:
		case s := <-signals:
			signal.Reset(os.Interrupt, syscall.SIGTERM)
			_ = StopAll()
			code := 1
			if n, ok := s.(syscall.Signal); ok {
				code = 128 + int(n)
			}
			os.Exit(code)
		}
	}()
	return sync.OnceValue(func() error {
		err := StopAll()
		signal.Stop(signals)
		close(undone)
		<-finished
		return err
	})
}
