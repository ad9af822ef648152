package gateway

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/data/transfer"
)

// The bars for data: 50,000 files of 3 kB are put in 30 s, and one more file in a dataset of
// 200,000 is committed in 50 ms.

func BenchmarkPutManyFiles(b *testing.B) {
	const files, size = 50_000, 3000
	dir, text := b.TempDir(), make([]byte, size)
	source := rand.NewChaCha8([32]byte{})
	began := time.Now()
	for i := range files {
		_, _ = source.Read(text)
		at := filepath.Join(dir, fmt.Sprintf("%03d", i%500))
		must1(0, os.MkdirAll(at, 0o700))(b)
		must1(0, os.WriteFile(filepath.Join(at, fmt.Sprint(i)), text, 0o600))(b)
	}
	bare := time.Since(began) // time of the disk alone
	for b.Loop() {
		w := newWorld(b, withStore(b, &commitRecorder{}))
		began = time.Now()
		all := must1(transfer.Scan(b.Context(), dir, nil))(b)
		c := transfer.Client{Base: w.url + "/api/v1/data"}
		must1(0, c.Put(b.Context(), dir, all, nil))(b)
		put := time.Since(began)
		lines := []string{`{"dataset":"many"}`}
		for _, f := range all {
			lines = append(lines, string(must1(json.Marshal(api.Change{File: f}))(b)))
		}
		if r := w.post(dataPath+"commits", strings.Join(lines, "\n")); r.StatusCode != http.StatusOK {
			b.Fatalf("%s %s", r.Status, r.body)
		}
		b.ReportMetric(bare.Seconds(), "s/bare-write")
		b.ReportMetric(put.Seconds(), "s/put")
		b.ReportMetric(time.Since(began).Seconds(), "s/put-and-commit")
	}
}

func BenchmarkCommitOneFile(b *testing.B) {
	const files = 200_000
	w := newWorld(b, withStore(b, &commitRecorder{}))
	w.post(dataPath+"objects", framesOf("x"), "Content-Type", api.ObjectsType)
	change := func(path string) string {
		return fmt.Sprintf(`{"path":"%s","digest":"%s","size":1}`, path, digestOf("x"))
	}
	lines := []string{`{"dataset":"large"}`}
	for i := range files {
		lines = append(lines, change(fmt.Sprintf("%03d/%06d.txt", i%500, i)))
	}
	if r := w.post(dataPath+"commits", strings.Join(lines, "\n")); r.StatusCode != http.StatusOK {
		b.Fatalf("%s %s", r.Status, r.body)
	}
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		body := `{"dataset":"large"}` + change(fmt.Sprintf("%03d/new-%d.txt", i%500, i))
		began := time.Now()
		if r := w.post(dataPath+"commits", body); r.StatusCode != http.StatusOK {
			b.Fatalf("%s %s", r.Status, r.body)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-p50")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "ms-p99")
}
