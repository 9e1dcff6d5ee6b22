// Package lanes has the types for lanes that dispatch, cursor, lease and the engine share.
package lanes
