package sqltext

import (
	"cmp"
	"strings"
)

// Store is one of the three tables of messages for package admin. Outbox, Inbox and Queue below describe their columns,
// states, and the index that finds the rows of a state. All statements are made from that.
type Store struct {
	// Page has a statement for each state, and for "newest " plus the state if the order can be reversed. "rows" finds all
	// states, "ids" selected rows, "find" rows only by name. Group groups rows of a state by their error.
	Page, Group map[string]string
	Act         map[string]string // by verb
	Show        string            // reads rows, in the given order
	Payload     string
	History     string
	OldDead     string // reads a page of dead messages, and reports which are past the retention
	DiscardOld  string // discards them if they are unchanged
}

// columns are the SQL expressions for the properties of a message.
type columns struct {
	table, alias, named                          string // condition: this row is w.owner, w.name
	owner, name, id, uuid, topic, key, about     string
	version                                      string // changes when the content is replaced
	state, attempts, crashes, created, due, dead string
	died                                         string // when a dead message died; NULL if unknown
	pastDead                                     string // condition: rows after a place in the scan of dead rows
	settled, error, metadata, payload            string
	match                                        string // condition: the row is $17
	all                                          string // columns that scans read, without the payload
	free                                         string // condition: rows that an operator may change
	history                                      string
	drawn                                        string // or empty
	scans, groups                                map[string]scan
	acts                                         map[string]string // assignments of an act
}

// scan is how an index finds rows: the first rows of each part in its order. merge merges the parts, complete up to the
// horizon: the first place at which a part was not read to its end.
type scan struct{ parts, index, after, order, at, merge string }

// The arguments of a scan: topic, key, owner, part of the error, times between which the message was written, states
// ('{}' = all), rows to read of each part, rows to return, the largest id, the place to continue after (owner, time,
// name, id), owners and names of the selected rows, text to find, rows to read in all, and the smallest number of
// attempts. Empty texts match everything.
const (
	scanTemplate = `WITH RECURSIVE args AS (
    SELECT $1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text[], $8::bigint, $9::bigint, $10::bigint,
           $11::text, $12::timestamptz, $13::text, $14::bigint, $15::text[], $16::text[], $17::text, $18::bigint,
             $19::int
), parts(part) AS ({parts}), bound AS MATERIALIZED (
    SELECT greatest(1, least($8::bigint, $18::bigint / greatest(1, count(p.part)))) AS most FROM parts p
), scanned AS MATERIALIZED (
    SELECT p.part, b.most, r.*
      FROM parts p CROSS JOIN bound b CROSS JOIN LATERAL (
           SELECT row_number() OVER () AS n, s.*
             FROM (SELECT {owner} AS owner, {at} AS at, {name} AS name, {id} AS id, {key} AS key, {about} AS about,
                          {created} AS created, coalesce(left({error}, 1024), '') AS error, {version} AS version,
                            {fits} AS fits
                     FROM {from} WHERE {index} AND {after} ORDER BY {order} LIMIT b.most) s) r
     WHERE p.part IS NOT NULL
)`
	pageTemplate = scanTemplate + `, horizon AS (SELECT l.* FROM scanned l WHERE l.n = l.most ORDER BY {merge_l} LIMIT 1)
(SELECT true, h.owner, coalesce(to_json(h.at) #>> '{}', ''), h.name, h.id, ''::text, ''::text, 0::bigint FROM horizon h)
UNION ALL
(SELECT false, l.owner, coalesce(to_json(l.at) #>> '{}', ''), l.name, l.id, l.key, l.error, l.version
   FROM scanned l LEFT JOIN horizon h ON true
  WHERE l.fits AND (h.n IS NULL OR ({merge_l}) <= ({merge_h})) ORDER BY {merge_l} LIMIT $9::bigint)`
	groupTemplate = scanTemplate + `, full_parts AS (SELECT l.part, count(*) >= max(l.most) AS more FROM scanned l
  GROUP BY l.part)
SELECT l.about, l.error, count(*), min(l.created), max(l.created), bool_or(f.more)
  FROM scanned l JOIN full_parts f ON f.part = l.part
 WHERE l.fits GROUP BY l.about, l.error ORDER BY count(*) DESC LIMIT $9::bigint`
	fitsTemplate = `(($1::text = '' OR {topic} = $1::text) AND ($2::text = '' OR {key} = $2::text)
      AND ($3::text = '' OR {owner} = $3::text)
      AND ($4::text = '' OR position(lower($4::text) IN lower({error})) > 0)
      AND ($5::text = '' OR {created} >= nullif($5::text, '')::timestamptz)
      AND ($6::text = '' OR {created} < nullif($6::text, '')::timestamptz)
      AND ($7::text[] = '{}' OR {state} = ANY ($7::text[])) AND {id} <= $10::bigint
      AND ($17::text = '' OR {match}) AND {attempts} >= $19::int)`

	// Arguments: owners, names.
	showTemplate = `SELECT r.* FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS w(owner, name, n)
  CROSS JOIN LATERAL (
       SELECT {owner}, {name}, {uuid}, {topic}, {key}, {state}, {attempts}, {crashes}, coalesce(left({error}, 1024),
         ''),
              {metadata}, {created}, {due}, {dead}, {settled} FROM {from} WHERE {named} LIMIT 1) r
 ORDER BY w.n`
	// Arguments: owner, name.
	payloadTemplate = `SELECT {payload} FROM (SELECT $1::text AS owner, $2::text AS name) w JOIN {from} ON {named}`
	historyTemplate = `SELECT coalesce({alias}.history, '[]')::text FROM (SELECT $1::text AS owner, $2::text AS name) w
  JOIN {from} ON {named}`

	// It returns places, and the owners, versions and ages of their messages.
	//
	// Arguments: rows, topics (empty = all), the place to continue after (topic or consumer, time, name, id), retention
	// in seconds.
	oldDeadTemplate = `WITH args AS (SELECT $3::text, $4::timestamptz, $5::text, $6::bigint)
SELECT {about}, coalesce(to_json({at}) #>> '{}', '-infinity'), {name}, {id}, {owner}, {version},
       coalesce({old}, false){free} AND ($2::text[] = '{}' OR {topic} = ANY ($2::text[]))
  FROM {from} WHERE {index} AND {past_dead} ORDER BY {order} LIMIT $1::bigint`
	oldTemplate = `{died} < statement_timestamp() - $7::float8 * interval '1 second'`

	// Rows locked by other sessions are skipped, and counted.
	//
	// Arguments: owners, names, states in which the rows must still be, entry in the audit log, their new error,
	// versions: a message of the queue may have been enqueued again since, with different content. DiscardOld: retention
	// in seconds.
	actTemplate = `WITH args AS (SELECT $5::text), free AS MATERIALIZED (
    SELECT r.* FROM unnest($1::text[], $2::text[], $6::bigint[]) WITH ORDINALITY AS w(owner, name, version, n)
      CROSS JOIN LATERAL (
           SELECT {owner} AS owner, {name} AS name FROM {from}
            WHERE {named} AND {version} = w.version AND {state} = ANY ($3::text[]){free}{old} LIMIT 1
              FOR UPDATE OF {alias} SKIP LOCKED) r
), changed AS (
    UPDATE {from} SET {set}{history} FROM free w WHERE {named} RETURNING 1` + acted + `, '[]', {drawn} FROM changed`

	// acted counts a batch in the audit log.
	acted = `
), counted AS (
    UPDATE {audit} SET matched = matched + cardinality($2::text[]), touched = touched + (SELECT count(*) FROM changed),
           skipped = skipped + cardinality($2::text[]) - (SELECT count(*) FROM changed)
     WHERE id = $4::bigint
)
SELECT count(*)`

	// drawn draws an id after a change, because a Group notices work in an idle outbox by its sequence.
	drawn    = `CASE WHEN count(*) > 0 THEN nextval({outbox_id_seq_text}) END`
	readable = `timestamptz '1970-01-02 00:00Z' AND timestamptz '9999-12-30 00:00Z'`
)

// one part is a whole index; other parts are a lane or a value of a column, each found by one descent of the index
const (
	onePart  = `SELECT ''::text`
	lanePart = `SELECT l.lane::text FROM generate_series(0, 63) AS l(lane) WHERE $2::text = ''
  OR l.lane = hashtext($2::text) & 63`
)

func partsOf(table, column, argument, index string) string {
	return strings.NewReplacer("{from}", table, "{column}", column, "{arg}", argument, "{index}", index).Replace(`
    SELECT * FROM (SELECT {column} FROM {from} WHERE ({arg}::text = '' OR {column} = {arg}::text) AND {index}
                    ORDER BY {column} LIMIT 1) first
    UNION ALL
    SELECT (SELECT {column} FROM {from} WHERE {column} > p.part AND {index} ORDER BY {column} LIMIT 1)
      FROM parts p WHERE p.part IS NOT NULL AND {arg}::text = ''`)
}

func newStore(c columns) *Store {
	c.table, c.alias, _ = strings.Cut(c.table, " ")
	from := c.table + " " + c.alias
	fill := func(template string, more ...string) string {
		r := strings.NewReplacer("{from}", from, "{table}", c.table, "{alias}", c.alias, "{named}", c.named, "{owner}",
			c.owner,
			"{name}", c.name, "{id}", c.id, "{version}", c.version, "{uuid}", c.uuid, "{topic}", c.topic, "{key}", c.key,
			"{about}", c.about, "{state}",
			c.state, "{attempts}", c.attempts, "{crashes}", c.crashes, "{created}", c.created, "{due}", c.due, "{dead}", c.dead,
			"{settled}", c.settled, "{error}", c.error, "{metadata}", c.metadata, "{payload}", c.payload, "{match}", c.match,
			"{free}", c.free, "{died}", c.died, "{past_dead}", c.pastDead, "{history}", c.history,
			"{drawn}", cmp.Or(c.drawn, "NULL::bigint"))
		return r.Replace(strings.NewReplacer(append(more, "{fits}", fitsTemplate)...).Replace(template))
	}
	s := &Store{
		Page: map[string]string{}, Group: map[string]string{}, Act: map[string]string{}, Show: fill(showTemplate),
		Payload: fill(payloadTemplate), History: fill(historyTemplate),
	}
	scanned := func(template string, by scan) string {
		if by.at == "" {
			by.at = "NULL::timestamptz"
		}
		from := from
		if by.index == named { // one after another, regardless of the planner's estimates
			from = "(SELECT DISTINCT * FROM unnest($15::text[], $16::text[])) AS w(owner, name) CROSS JOIN LATERAL (SELECT " +
				c.all + " FROM {from} WHERE {named} LIMIT 1) " + c.alias
			by.index = "true"
		}
		return fill(template, "{parts}", by.parts, "{index}", by.index, "{after}", by.after, "{order}", by.order, "{at}",
			by.at,
			"{merge_l}", strings.ReplaceAll(by.merge, "@", "l."), "{merge_h}", strings.ReplaceAll(by.merge, "@", "h."),
			"{from}", strings.ReplaceAll(from, "{from}", c.table+" "+c.alias))
	}
	for name, by := range c.scans {
		s.Page[name] = scanned(pageTemplate, by)
	}
	for name, by := range c.groups {
		s.Group[name] = scanned(groupTemplate, by)
	}
	for verb, set := range c.acts {
		s.Act[verb] = fill(actTemplate, "{set}", set, "{old}", "")
	}
	dead := c.scans["dead"]
	s.OldDead = fill(oldDeadTemplate, "{index}", c.groups["dead"].index, "{order}", dead.order,
		"{at}", cmp.Or(dead.at, "NULL::timestamptz"), "{old}", oldTemplate)
	s.DiscardOld = fill(actTemplate, "{set}", c.acts["discard"], "{old}", " AND "+oldTemplate)
	return s
}

// named is the scan of selected rows.
const named = "named"
