package storage_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"drawbridge/kitrun/internal/storage"
)

// BenchmarkInspect looks at the tree that DRAWBRIDGE_BENCH_TREE names, else at one
// of a thousand files.
func BenchmarkInspect(b *testing.B) {
	dir := os.Getenv("DRAWBRIDGE_BENCH_TREE")
	if dir == "" {
		dir = b.TempDir()
		for i := range 10 {
			for j := range 100 {
				if err := writeFile(dir, i, j); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	b.ReportAllocs()
	entries := int64(0)
	for b.Loop() {
		seen, err := storage.Inspect(b.Context(), []string{dir}, roomy)
		if err != nil {
			b.Fatal(err)
		}
		entries += seen.ObservedEntries
	}
	b.ReportMetric(float64(entries)/b.Elapsed().Seconds(), "entries/s")
}

func writeFile(dir string, i, j int) error {
	sub := filepath.Join(dir, strconv.Itoa(i))
	if err := os.MkdirAll(sub, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(sub, strconv.Itoa(j)), []byte("x"), 0o600)
}
