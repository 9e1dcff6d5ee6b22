// Package lanes has the types for lanes that dispatch, cursor, lease and the engine share.
package lanes

// Count is the number of lanes; they are numbered from 0.
const Count = 64

// Assignment is one period of owning a lane. Everything in memory belongs to an assignment.
type Assignment struct {
	Lane  int16
	Epoch int64 // raised whenever the lane is taken; 0 is free
}

// Room is how much more a read may bring into memory. No Rows: only rows asked for by id. Otherwise each lane gets one.
type Room struct {
	Rows   int
	Bytes  int64
	Others int // rows that are read in addition, by id or because they fell due
}
