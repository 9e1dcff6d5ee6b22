package sqltext

// Parked is what a consumer group has parked of a topic: for each key its oldest message and how many there are. Its
// bound is that of parked keys, not of the index: few keys are parked, and published rows are deleted at once.
//
// Arguments: topic.
const Parked = `SELECT o.key, min(o.id), count(*) FROM {outbox} o
 WHERE o.topic = $1::text AND o.published_at IS NULL AND o.dead_at IS NULL
 GROUP BY o.key`
