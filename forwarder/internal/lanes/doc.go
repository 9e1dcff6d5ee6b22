// Package lanes has the types for lanes that board, window, lease and the engine share.
package lanes
