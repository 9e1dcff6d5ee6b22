package queue

import (
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/fleet"
)

// maxStale is how many stores of removed databases are kept.
const maxStale = 100

// Stores are the stores of many databases, one for each. It is safe for concurrent use.
type Stores struct {
	fleet  *fleet.Fleet
	cfg    StoreConfig
	logger watermill.LoggerAdapter

	mu    sync.Mutex
	known map[string]*Store // by key
}

// NewStores makes the stores of a fleet, each on first use. It does no I/O. It returns an error for a nil fleet, or one
// that names an invalid field. If logger is nil, the logger of each handle is used.
func NewStores(databases *fleet.Fleet, cfg StoreConfig, logger watermill.LoggerAdapter) (*Stores, error) {
	if databases == nil {
		return nil, errors.New("queue: no databases: pass the result of fleet.New")
	}
	checked := cfg
	checked.setDefaults()
	if err := checked.validate(); err != nil {
		return nil, err
	}
	return &Stores{fleet: databases, cfg: cfg, logger: logger, known: map[string]*Store{}}, nil
}

// Get returns the store of the database with this key. It is the same until the database's handle changes. It returns
// fleet.ErrUnknownDatabase for an unknown key, and outbox.ErrClosed when the fleet has ended. If the database is
// removed from the fleet, it may be closed while the store is in use.
func (s *Stores) Get(key string) (*Store, error) {
	db, err := s.fleet.Get(key)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.known, key)
		return nil, err
	}
	return s.of(key, db)
}

func (s *Stores) of(key string, db *outbox.DB) (*Store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if store := s.known[key]; store != nil && (*outbox.DB)(store.db) == db {
		return store, nil
	}
	store, err := NewStore(db, s.cfg, s.logger)
	if err != nil {
		return nil, err
	}
	if s.known[key] = store; len(s.known) > len(s.fleet.Keys())+maxStale {
		for key := range s.known {
			if _, err := s.fleet.Get(key); err != nil {
				delete(s.known, key)
			}
		}
	}
	return store, nil
}
