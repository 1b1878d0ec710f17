package store_test

import (
	"context"
	"testing"

	"drawbridge/shared/store"
)

func TestQuick(t *testing.T) {
	dir := t.TempDir() + "/s"
	s, err := store.Open(context.Background(), store.Options{Dir: dir, Program: "bridge"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := s.Acquire(context.Background(), "x/1", store.LeaseTTL)
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Info(context.Background())
	t.Logf("%+v %v %v %v", info, err, l.Live(), s.Holder())
	if lost, err := s.Renew(context.Background(), l); err != nil || len(lost) > 0 {
		t.Fatal(lost, err)
	}
	rows, err := s.Leases(context.Background(), "x/")
	t.Logf("%+v %v", rows, err)
}
