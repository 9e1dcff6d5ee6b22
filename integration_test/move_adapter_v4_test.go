package integration_test

import (
	wsql3 "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
)

// schemaV4 is a SchemaAdapter of watermill-sql v4 for publishers. docs/guides/moving.md links to it, to be copied.
type schemaV4 struct {
	wsql.DefaultPostgreSQLSchema // publishers do not call its methods
	outbox                       wsql3.SchemaAdapter
}

func (s schemaV4) InsertQuery(p wsql.InsertQueryParams) (wsql.Query, error) {
	q, err := s.outbox.InsertQuery(p.Topic, p.Msgs)
	return wsql.Query(q), err
}

func (s schemaV4) SchemaInitializingQueries(wsql.SchemaInitializingQueriesParams) ([]wsql.Query, error) {
	return nil, nil
}
