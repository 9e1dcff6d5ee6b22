package lanes

// Count is how many lanes there are; they are numbered from 0.
const Count = 64

// Term is one time of owning a lane. All in memory belongs to one.
type Term struct {
	Lane  int16
	Epoch int64 // raised whenever the lane is taken; 0 is free
}

// Room is how much more a read may bring into memory. No Rows: only what is asked for by id. Else each lane gets one.
type Room struct {
	Rows   int
	Bytes  int64
	Others int // rows that are read besides, by id or because they fell due
}
