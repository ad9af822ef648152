package embedded

import (
	"bytes"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// After a clean stop Redis has its keys again, but not those of processes that have ended.
func TestACleanStopKeepsRedis(t *testing.T) {
	dir := t.TempDir()
	ctx := t.Context()
	s := start(t, Options{Dir: dir})
	r := redis.NewClient(&redis.Options{Addr: s.Redis()})
	must(t, r.HSet(ctx, "hash", "a", "1", "", "empty", "b", "").Err())
	must(t, r.ZAdd(ctx, "zset", redis.Z{Score: 1.5, Member: "x"}, redis.Z{Score: -1e300, Member: "y"}).Err())
	must(t, r.SAdd(ctx, "set", "m", "n").Err())
	must(t, r.RPush(ctx, "list", "1", "2", "1").Err())
	must(t, r.Set(ctx, "text", "t\x00\n", 0).Err())
	must(t, r.Set(ctx, "lease", "of a process", time.Hour).Err())
	must(t, r.XAdd(ctx, &redis.XAddArgs{Stream: "stream", Values: []string{"k", "v"}}).Err())
	must(t, r.Close())
	must(t, s.Close())

	s = start(t, Options{Dir: dir})
	r = redis.NewClient(&redis.Options{Addr: s.Redis()})
	defer r.Close()
	if got := r.Keys(ctx, "*").Val(); !slices.Equal(slices.Sorted(slices.Values(got)), []string{"hash", "list", "set", "text", "zset"}) {
		t.Errorf("the keys are %q", got)
	}
	if got := r.HGetAll(ctx, "hash").Val(); len(got) != 3 || got["a"] != "1" || got[""] != "empty" {
		t.Errorf("the hash is %q", got)
	}
	if got := r.ZRangeWithScores(ctx, "zset", 0, -1).Val(); len(got) != 2 || got[0].Score != -1e300 || got[1].Member != "x" || got[1].Score != 1.5 {
		t.Errorf("the sorted set is %v", got)
	}
	if got := r.SMembers(ctx, "set").Val(); len(got) != 2 {
		t.Errorf("the set is %q", got)
	}
	if got := r.LRange(ctx, "list", 0, -1).Val(); !slices.Equal(got, []string{"1", "2", "1"}) {
		t.Errorf("the list is %q", got)
	}
	if got := r.Get(ctx, "text").Val(); got != "t\x00\n" {
		t.Errorf("the text is %q", got)
	}
	if _, err := os.Stat(snapshotFile(dir)); !os.IsNotExist(err) {
		t.Errorf("the snapshot is still there, so a start after a kill would read it: %v", err)
	}
}

// A stop that cannot write the snapshot says so, and is a clean stop nevertheless.
func TestASnapshotThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	s := start(t, Options{Dir: dir, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	must(t, os.Mkdir(snapshotFile(dir)+".new", 0o700))
	must(t, s.Close())
	if !strings.Contains(log.String(), "its keys are not kept") {
		t.Errorf("the log says %q", log.String())
	}
	must(t, start(t, Options{Dir: dir}).Close())
}

// A snapshot that is cut off, changed, or of another build leaves Redis empty and is removed.
func TestASnapshotThatDoesNotFit(t *testing.T) {
	full := miniredis.NewMiniRedis()
	full.HSet("hash", "a", "1", "b", "2")
	_, err := full.ZAdd("zset", 1, "x")
	must(t, err)
	dir := t.TempDir()
	must(t, save(full, dir, "one"))
	good, err := os.ReadFile(snapshotFile(dir))
	must(t, err)
	read := func(text []byte, build string) []string {
		must(t, os.WriteFile(snapshotFile(dir), text, 0o600))
		m := miniredis.NewMiniRedis()
		must(t, restore(m, dir, build))
		if _, err := os.Stat(snapshotFile(dir)); !os.IsNotExist(err) {
			t.Errorf("it is still there: %v", err)
		}
		return m.Keys()
	}
	if keys := read(good, "one"); !slices.Equal(keys, []string{"hash", "zset"}) {
		t.Fatalf("the keys are %q", keys)
	}
	if keys := read(good, "two"); len(keys) > 0 {
		t.Errorf("another build has read %q", keys)
	}
	for i := range good {
		if keys := read(good[:i], "one"); len(keys) > 0 {
			t.Errorf("of %d bytes, %d have left %q", len(good), i, keys)
		}
		changed := bytes.Clone(good)
		changed[i] ^= 1
		if keys := read(changed, "one"); len(keys) > 0 {
			t.Errorf("with another byte %d it has left %q", i, keys)
		}
	}
}
