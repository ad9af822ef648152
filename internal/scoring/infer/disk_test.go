package infer

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func (s *toys) must(t *testing.T, c *Cache, r *Ref, fetches int) {
	t.Helper()
	m, err := c.Load(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	m.Release()
	if n := s.fetches(r); n != fetches {
		t.Errorf("%s was fetched %d times, not %d", r, n, fetches)
	}
}

// onDisk opens a cache that keeps nothing in memory.
func (s *toys) onDisk(t *testing.T, dir string, most int64, log *bytes.Buffer) *Cache {
	c := s.open(t, Options{Dir: dir, Disk: most, Memory: 1 << 10, Logger: slog.New(slog.NewTextHandler(log, nil))})
	c.said.Store(math.MaxInt64) // do not log that the memory is too small, because this is intended
	return c
}

func TestTheDiskIsSharedAndOutlivesUs(t *testing.T) {
	s, dir, log := newToys(), t.TempDir(), new(bytes.Buffer)
	r, odd := s.put(1, 4096), s.put(2, 4096)
	odd.Artifact = "../../etc/passwd" // not a digest
	s.files[odd.Artifact+"/"+ModelFile] = "64"
	one, two := s.onDisk(t, dir, 0, log), s.onDisk(t, dir, 0, log)
	s.must(t, one, r, 1)
	s.must(t, two, r, 1)
	s.must(t, one, odd, 1)
	s.must(t, s.onDisk(t, dir, 0, log), odd, 1)
	if log.Len() > 0 {
		t.Error(log)
	}
}

// If any byte of a file is wrong, or the file is cut off anywhere, it is fetched again and then
// complete.
func TestWhatIsBrokenIsFetchedAgain(t *testing.T) {
	s, dir, log := newToys(), t.TempDir(), new(bytes.Buffer)
	r := s.put(1, 4096)
	s.files[r.Artifact+"/"+CardFile] = "labels: [a]"
	c := s.onDisk(t, dir, 0, log)
	s.must(t, c, r, 1)
	at := c.disk.path(r.Artifact)
	whole, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	fetches := 1
	check := func(broken []byte) {
		t.Helper()
		if err := os.WriteFile(at, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		fetches++
		s.must(t, c, r, fetches)
		if now, err := os.ReadFile(at); err != nil || !bytes.Equal(now, whole) {
			t.Fatalf("it was not mended: %v", err)
		}
	}
	for i := range whole {
		broken := bytes.Clone(whole)
		broken[i] ^= 1 << (i % 8)
		check(broken)
		check(whole[:i])
	}
	check(append(bytes.Clone(whole), 0))
	if strings.Count(log.String(), "fetching it again") != fetches-1 {
		t.Error("not each was said")
	}
	other := s.put(2, 4096) // a complete file under the name of another
	if err := os.MkdirAll(filepath.Dir(c.disk.path(other.Artifact)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.disk.path(other.Artifact), whole, 0o600); err != nil {
		t.Fatal(err)
	}
	s.must(t, c, other, 1)
}

func TestTheOldestUsedLeaveTheDisk(t *testing.T) {
	s, dir, log := newToys(), t.TempDir(), new(bytes.Buffer)
	const most = 64 << 10
	c := s.onDisk(t, dir, most, log)
	now := time.Now().Add(-1000 * time.Hour) // a new file is newer than all others
	c.disk.now = func() time.Time { return now }
	first := s.put(0, 4096)
	pad := strings.Repeat("\n", 2<<10)
	for i := range 100 {
		r := s.put(i, 4096)
		s.files[r.Artifact+"/"+ModelFile] += pad
		s.must(t, c, r, 1)
		at := c.disk.path(r.Artifact)
		if err := os.Chtimes(at, now, now); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Hour)
		s.must(t, c, first, 1) // used again and again, so it stays
		c.disk.trimmed(t)
		if sum := sizes(t, dir); sum > most {
			t.Fatalf("%d bytes lie there", sum)
		}
	}
	s.must(t, c, s.put(99, 4096), 1)
	s.must(t, c, s.put(50, 4096), 2)
	if log.Len() > 0 {
		t.Error(log)
	}
}

// trimmed waits until no trim is running.
func (d *disk) trimmed(t *testing.T) {
	t.Helper()
	d.running.Wait()
}

func sizes(t *testing.T, dir string) (sum int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			i, err := e.Info()
			sum += i.Size()
			return err
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

func TestWhatTheDeadLeftGoesAndWhatIsNotOursStays(t *testing.T) {
	dir := t.TempDir()
	long := time.Now().Add(-2 * tempFor)
	for name, at := range map[string]time.Time{"ab/dead" + tempEnd: long, "ab/alive" + tempEnd: time.Now(), "notes.txt": long, "ab/cd" + fileEnd: long} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, 100), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	newToys().onDisk(t, dir, 50, new(bytes.Buffer))
	for name, stays := range map[string]bool{"ab/dead" + tempEnd: false, "ab/alive" + tempEnd: true, "notes.txt": true, "ab/cd" + fileEnd: false} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != stays {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A disk that cannot be written is logged once, and models are served anyway.
func TestWithoutADiskModelsAreServed(t *testing.T) {
	s, dir, log := newToys(), filepath.Join(t.TempDir(), "cache"), new(bytes.Buffer)
	c := s.onDisk(t, dir, 0, log)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // a file in place of the folder
		t.Fatal(err)
	}
	for n := range 3 {
		s.must(t, c, s.put(1, 4096), n+1)
	}
	if n := strings.Count(log.String(), "writing to the cache failed"); n != 1 {
		t.Errorf("said %d times:\n%s", n, log)
	}
	if _, err := Open(Options{Dir: dir, Fetch: s.fetch}); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("opened all the same: %v", err)
	}
}

func FuzzLayout(f *testing.F) {
	whole := bytes.Join(encode("abc", files{model: []byte("model"), card: []byte("card")}), nil)
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := decode(data, "abc")
		if err != nil {
			if !errors.Is(err, errTorn) {
				t.Error(err)
			}
			return
		}
		if again := bytes.Join(encode("abc", got), nil); !bytes.Equal(again, data) {
			t.Errorf("%q was taken, and is written %q", data, again)
		}
	})
}
