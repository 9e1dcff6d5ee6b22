package main

import (
	"math"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
)

func send(t *testing.T, s *sink, indexes ...int) {
	t.Helper()
	for _, i := range indexes {
		if err := s.Publish(topic, messageOf(i)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSinkFindsWhatIsWrong(t *testing.T) {
	const n = 2*keys + 1 // two messages of each key, and a third of the first
	everything := make([]int, n)
	for i := range everything {
		everything[i] = i
	}
	tests := map[string]struct {
		indexes []int
		ok      bool
	}{
		"all in order":    {everything, true},
		"with repetition": {append([]int{0, 0}, everything...), true},
		"one missing":     {everything[:n-1], false},
		"one overtaken":   {append([]int{keys}, everything...), false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSink(n)
			send(t, s, tt.indexes...)
			if err := s.check(); (err == nil) != tt.ok {
				t.Errorf("check: %v", err)
			}
		})
	}
	t.Run("stranger", func(t *testing.T) {
		s := newSink(1)
		if err := s.Publish(topic, message.NewMessage("somebody else's", nil)); err == nil {
			t.Error("no error")
		}
		send(t, s, 0)
		if s.check() == nil {
			t.Error("check found nothing")
		}
	})
}

func TestWorkersTogether(t *testing.T) {
	result := func(indexes ...int) workerResult {
		s := newSink(2 * keys)
		s.first = make([]int64, keys)
		send(t, s, indexes...)
		return s.result(nil)
	}
	if err := checkWorkers(4, result(0, 1), result(keys, keys+1)); err != nil {
		t.Error(err)
	}
	if err := checkWorkers(4, result(0, 1), result(keys)); err == nil {
		t.Error("a missing message was not found")
	}
	if err := checkWorkers(1, workerResult{
		Seen: []uint64{1}, First: make([]int64, keys), Last: make([]int64, keys), Overtook: 1,
	}); err == nil {
		t.Error("a message that overtook another was not found")
	}
}

func TestIndexOfIsTheReverseOfUUIDOf(t *testing.T) {
	for _, i := range []int{0, 1, 999_999, math.MaxInt32} {
		if got := indexOf(uuidOf(i)); got != i {
			t.Errorf("indexOf(uuidOf(%d)) = %d", i, got)
		}
	}
	if indexOf("6ba7b810-9dad-11d1-80b4-00C04FD430C8") != -1 {
		t.Error("a stranger has an index")
	}
}

func TestMedianAndVerdict(t *testing.T) {
	if m := median([]float64{9, 1, 5}); m != 5 {
		t.Errorf("median is %v", m)
	}
	if m := median([]float64{1, 3}); m != 2 {
		t.Errorf("median is %v", m)
	}
	r := row{floor: 0.9, aim: 1}
	for _, tt := range []struct {
		o     outcome
		below bool
	}{
		{outcome{row: r, value: 0.9}, false},
		{outcome{row: r, value: 0.89}, true},
		{outcome{row: r, value: 2, broken: []string{"too late"}}, true},
		{outcome{row: row{floor: 0.9, missing: "no such thing"}}, false},
	} {
		if tt.o.below() != tt.below {
			t.Errorf("%+v: below is %v", tt.o, tt.o.below())
		}
	}
}
