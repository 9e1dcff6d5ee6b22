// Package lanes has the words about lanes that board, window, lease and the engine share.
package lanes
