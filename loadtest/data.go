package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/data/transfer"
	"tidemill.dev/internal/gateway/client"
)

const smallFile = 3000 // bytes of each file

// dataMeasured is the speed at which files get into a dataset.
type dataMeasured struct {
	files, large int
	copied       time.Duration // lower bound: the same files copied from folder to folder
	put          time.Duration // files scanned, uploaded and committed through the gateway
	commits      sample        // commits that add one file to a dataset with many files
}

// measureDataPut measures what `tidemill data put` does.
func (l *laptopBench) measureDataPut(ctx context.Context, folder string) (m dataMeasured, err error) {
	m.files, m.large = l.files, 4*l.files
	dir := filepath.Join(folder, "files")
	if err := writeFiles(dir, m.files); err != nil {
		return m, err
	}
	began := time.Now()
	if err := os.CopyFS(filepath.Join(folder, "copied"), os.DirFS(dir)); err != nil {
		return m, err
	}
	m.copied = time.Since(began)
	door, err := client.Dial(ctx, client.Options{URL: l.url})
	if err != nil {
		return m, err
	}
	defer door.Close()
	began = time.Now()
	files, err := putFolder(ctx, door, dir)
	if err != nil {
		return m, err
	}
	m.put = time.Since(began)
	m.commits, err = l.addOne(ctx, door, files[0], m.large)
	return m, err
}

func writeFiles(dir string, n int) error {
	b := make([]byte, smallFile)
	for i := range n {
		sub := filepath.Join(dir, fmt.Sprintf("%03d", i/1000))
		if err := os.MkdirAll(sub, 0o755); err != nil {
			return err
		}
		rand.Read(b)
		if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("%06d.bin", i)), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func putFolder(ctx context.Context, door *client.Gateway, dir string) ([]api.File, error) {
	nobody := func(int, int64) {}
	files, err := transfer.Scan(ctx, dir, nobody)
	if err == nil {
		err = door.Carrier().Put(ctx, dir, files, nobody)
	}
	if err == nil {
		_, err = door.Commit(ctx, api.CommitAsked{Dataset: "bench/small", Request: "small"}, changesOf(files))
	}
	return files, err
}

func changesOf(files []api.File) []api.Change {
	all := make([]api.Change, len(files))
	for i, f := range files {
		all[i].File = f
	}
	return all
}

// addOne makes a dataset of many files, and then commits one more file n times. The files share
// their bytes, because only the work on the tree is measured.
func (l *laptopBench) addOne(ctx context.Context, door *client.Gateway, like api.File, n int) (sample, error) {
	many := make([]api.File, n)
	for i := range many {
		many[i] = like
		many[i].Path = fmt.Sprintf("all/%07d.bin", i)
	}
	first, err := door.Commit(ctx, api.CommitAsked{Dataset: "bench/large", Request: "large"}, changesOf(many))
	if err != nil || first.Files != n {
		return nil, errors.Join(err, fmt.Errorf("a dataset of %d files has %d", n, first.Files))
	}
	took := make(sample, 0, oneMore)
	for i := range oneMore {
		more := like
		more.Path = fmt.Sprintf("all/more-%d.bin", i)
		began := time.Now()
		if _, err := door.Commit(ctx, api.CommitAsked{Dataset: "bench/large", Request: fmt.Sprint("more-", i)}, changesOf([]api.File{more})); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	return took.sorted(), nil
}

const oneMore = 100

// The bars of data.
const (
	putBar    = 30 * time.Second
	commitBar = 50 * time.Millisecond // median
)

func (t *table) data(m *dataMeasured) {
	fmt.Fprintf(t.w, "%d files of %d B put through the door: %s, beside %s to copy them from folder to folder; bar ≤ %s for 50000: %s\n", m.files, smallFile,
		m.put.Round(time.Millisecond), m.copied.Round(time.Millisecond), putBar, t.verdict(m.put*50_000/time.Duration(m.files) <= putBar))
	p50 := m.commits.quantile(0.5)
	fmt.Fprintf(t.w, "one file more on a dataset of %d: committed in %s in the median, %s in 99 of 100 cases; bar ≤ %s: %s\n\n", m.large,
		micros(p50), micros(m.commits.quantile(0.99)), commitBar, t.verdict(p50 <= commitBar))
}
