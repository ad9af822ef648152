package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemill.dev/api"
)

// BenchmarkPutObject measures what a file of 3 kB costs the store.
func BenchmarkPutObject(b *testing.B) {
	s := openStore(b, b.TempDir())
	data := make([]byte, 3000)
	defer cpu(b)()
	for i := 0; b.Loop(); i++ {
		copy(data, fmt.Sprint(i))
		sum := sha256.Sum256(data)
		if err := s.PutObject(b.Context(), hex.EncodeToString(sum[:]), 3000, bytes.NewReader(data)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCommitInto200000 adds one file to a dataset of 200,000 files in one folder or in many.
func BenchmarkCommitInto200000(b *testing.B) {
	for _, folders := range []int{1, 2000} {
		b.Run(fmt.Sprintf("folders=%d", folders), func(b *testing.B) {
			s := openStore(b, b.TempDir())
			put(b, s, "1")
			base, err := s.Tree(b.Context(), numbered(200_000, folders))
			if err != nil {
				b.Fatal(err)
			}
			if _, err := s.Commit(b.Context(), CommitRequest{CommitAsked: api.CommitAsked{Dataset: "d"}, Base: base.Tree}, nil); err != nil {
				b.Fatal(err)
			}
			defer cpu(b)()
			for i := 0; b.Loop(); i++ {
				data := fmt.Sprint("new ", i)
				put(b, s, data)
				f := fileOf(fmt.Sprintf("%03d/new-%d.jpg", rand.IntN(folders), i), data)
				_, err := s.Commit(b.Context(), CommitRequest{CommitAsked: api.CommitAsked{Dataset: "d", Request: f.Path},
					Announce: func(context.Context, api.Commit) error { return nil }}, []api.Change{{File: f}})
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func numbered(n, folders int) []api.File {
	files := make([]api.File, n)
	for i := range files {
		files[i] = fileOf(fmt.Sprintf("%03d/image-%08d.jpg", i%folders, i*7919%1_000_003), "1")
	}
	return files
}

func put(t testing.TB, s *Store, data string) {
	t.Helper()
	if err := s.PutObject(t.Context(), digestOf(data), int64(len(data)), strings.NewReader(data)); err != nil {
		t.Fatal(err)
	}
}

// cpu reports the processor time, which does not depend on how busy the machine is.
func cpu(b *testing.B) (done func()) {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	return func() { b.ReportMetric(float64((used()-before).Microseconds())/float64(b.N), "cpu-µs/op") }
}
