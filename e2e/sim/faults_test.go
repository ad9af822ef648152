package sim

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"tidemill.dev/broker/embedded"
	"tidemill.dev/e2e/sim/vnet"
)

// carryOut does the faults of the plan at their times, and returns at the end of the load.
func (w *world) carryOut() {
	began := time.Now()
	all := slices.SortedFunc(slices.Values(w.p.faults), func(a, b fault) int { return cmp.Compare(a.at, b.at) })
	for _, f := range all {
		time.Sleep(time.Until(began.Add(f.at)))
		w.history.say("FAULT: %v", f)
		before := time.Now()
		if w.do(f); f.kind == "weeks" {
			began = began.Add(time.Since(before))
		}
	}
	time.Sleep(time.Until(began.Add(w.p.load)))
}

func (w *world) do(f fault) {
	switch f.kind {
	case "kill":
		w.process(f.host).host.Load().KillAfter(f.n)
	case "loop":
		one := w.process(f.host)
		one.dies.Store(int64(1 + f.n))
		one.host.Load().Kill()
	case "restart":
		w.process(f.host).restart()
	case "cut":
		w.net.CutBetween(func(conn string) bool { return chance(w.p.seed, conn, int(f.at))%uint64(f.n) == 0 })
	case "block":
		w.net.Block(f.host, f.other)
		w.later(f.lasts, func() {
			if f.n%2 == 0 {
				w.net.CutBetween(func(conn string) bool { return joins(conn, f.host, f.other) })
			}
			w.net.Heal(f.host, f.other)
		})
	case "stall":
		w.stall(stall{f, time.Now().Add(f.lasts)})
	case "flush":
		w.must(w.flush())
	case "older":
		w.saveRedis(f.lasts)
	case "config":
		w.changeConfig()
	case "pause":
		w.ask("POST", "/api/v1/triggers/tell/pause")
		w.later(f.lasts, w.resume)
	case "servers":
		w.restartServers()
	case "evict":
		w.evict(f.n)
	case "store":
		w.hideStore(f.lasts)
	case "bucket":
		w.bucket.trouble(f)
	case "upgrade":
		w.lastings.Go(func() { w.upgrade(f) })
	case "recreate":
		w.recreate(f)
	case "weeks":
		w.sleepWeeks(f)
	case "clock":
		c := w.process(f.host).clock
		c.Set(time.Duration(f.n) * time.Millisecond)
		w.later(f.lasts, func() { c.Set(0) })
	}
}

// joins reports whether a connection, whose name is "client>server:port#number", is between two hosts.
func joins(conn, a, b string) bool {
	from, rest, _ := strings.Cut(conn, ">")
	to, _, _ := strings.Cut(rest, ":")
	return from == a && to == b || from == b && to == a
}

// stall holds the messages of some connections that a host has opened. The others go on, as if one
// of several brokers hung: the leader of a stream, or any.
type stall struct {
	fault
	until time.Time
}

func (w *world) stall(s stall) {
	all := []stall{s}
	if before := w.stalls.Load(); before != nil {
		all = append(all, *before...)
	}
	w.stalls.Store(&all)
}

// holds reports whether a stall holds a message. The stream of a connection is that of its last
// fetch or produce request.
func (s *stall) holds(w *world, m *vnet.Message) bool {
	if !m.At.Before(s.until) || !strings.HasPrefix(m.Conn, s.host+">") {
		return false
	}
	if s.other == "" {
		return chance(w.p.seed, m.Conn, int(s.at))%uint64(s.n) == 0
	}
	stream, _ := w.carries.Load(m.Conn)
	return stream == s.other
}

// message decides the fate of a message by the plan and by the stalls.
func (w *world) message(m *vnet.Message) vnet.Fault {
	if isRequest := len(m.Head) > 6 && m.Head[4] == 0 && m.Head[5] < 2 && strings.HasPrefix(m.Conn, m.From+">"); isRequest {
		for _, stream := range carried {
			if bytes.Contains(m.Head, []byte("tidemill."+stream)) {
				w.carries.Store(m.Conn, stream)
			}
		}
	}
	f := w.p.message(m)
	if all := w.stalls.Load(); all != nil {
		for i := range *all {
			if s := &(*all)[i]; s.holds(w, m) {
				f.Delay += s.until.Sub(m.At)
			}
		}
	}
	return f
}

func (w *world) process(name string) *process {
	return w.procs[slices.IndexFunc(w.procs, func(o *process) bool { return o.name == name })]
}

// later ends a fault that lasts.
func (w *world) later(d time.Duration, end func()) {
	w.lastings.Go(func() {
		time.Sleep(d)
		w.history.say("a fault of %v ends", d)
		end()
	})
}

// must notes a fault that had no effect, for example because its server is dead.
func (w *world) must(err error) {
	if err != nil {
		w.history.say("a fault had no effect: %v", err)
	}
}

// ask sends a request to a gateway, until one answers it with a success.
func (w *world) ask(method, path string) (answer string) {
	for try := range 60 {
		door := w.doors()[try%len(w.doors())]
		c := w.client(w.chaos, door)
		req, err := http.NewRequestWithContext(w.ctx, method, gatewayURL+path, nil)
		if err != nil {
			w.t.Error(err)
			return ""
		}
		res, err := c.Do(req)
		if err == nil {
			var text []byte
			text, err = io.ReadAll(res.Body)
			res.Body.Close()
			if err == nil && res.StatusCode/100 == 2 {
				c.CloseIdleConnections()
				return string(text)
			}
			err = fmt.Errorf("%s %s, %w", res.Status, text, err)
		}
		c.CloseIdleConnections()
		w.history.say("%s %s: %v", method, path, err)
		sleep(w.ctx, 2*time.Second)
	}
	return ""
}

// resume ends pauses of the trigger.
func (w *world) resume() { w.ask("POST", "/api/v1/triggers/tell/resume") }

// password reads a password of the embedded servers of tidemill up.
func (w *world) password(file func(dir string) string) (string, error) {
	text, err := os.ReadFile(file(filepath.Join(w.dir, "data")))
	return strings.TrimSpace(string(text)), err
}

// redis returns a client of the chaos host.
func (w *world) redis() *redis.Client {
	to, password := at(w.procs[0].host.Load(), redisPort), ""
	if w.servers != nil {
		to = w.servers.Redis()
	} else {
		password, _ = w.password(embedded.RedisPasswordFile) // without it Redis refuses the first command
	}
	return redis.NewClient(&redis.Options{Addr: to, Password: password, Dialer: w.chaos.Dial, MaxRetries: -1, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}})
}

func (w *world) flush() error {
	c := w.redis()
	defer c.Close()
	return c.FlushAll(w.ctx).Err()
}

// saveRedis copies Redis, and later replaces its content by the copy, as a failover to a replica that
// was late does.
func (w *world) saveRedis(after time.Duration) {
	c := w.redis()
	copied, err := copyRedis(w.ctx, c)
	_ = c.Close() // nothing is lost by it
	if err != nil {
		w.must(err)
		return
	}
	w.later(after, func() {
		c := w.redis()
		defer c.Close()
		w.must(copied.restore(w.ctx, c))
	})
}

// redisCopy has the content of Redis.
type redisCopy struct {
	texts  map[string]string
	hashes map[string]map[string]string
	sets   map[string][]string
	scores map[string][]redis.Z
	expire map[string]time.Duration
}

func copyRedis(ctx context.Context, c *redis.Client) (*redisCopy, error) {
	keys, err := c.Keys(ctx, "*").Result()
	if err != nil {
		return nil, err
	}
	all := &redisCopy{map[string]string{}, map[string]map[string]string{}, map[string][]string{}, map[string][]redis.Z{}, map[string]time.Duration{}}
	for _, key := range keys {
		kind, err := c.Type(ctx, key).Result()
		switch kind {
		case "string":
			all.texts[key], err = c.Get(ctx, key).Result()
		case "hash":
			all.hashes[key], err = c.HGetAll(ctx, key).Result()
		case "set":
			all.sets[key], err = c.SMembers(ctx, key).Result()
		case "zset":
			all.scores[key], err = c.ZRangeWithScores(ctx, key, 0, -1).Result()
		}
		if err != nil && err != redis.Nil {
			return nil, err
		}
		left, err := c.PTTL(ctx, key).Result()
		switch {
		case err != nil:
			return nil, err
		case left > 0:
			all.expire[key] = left
		case left != -1: // it has expired since, and must not come back without an end
			delete(all.texts, key)
			delete(all.hashes, key)
			delete(all.sets, key)
			delete(all.scores, key)
		}
	}
	return all, nil
}

func (r *redisCopy) restore(ctx context.Context, c *redis.Client) error {
	_, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.FlushAll(ctx)
		for key, text := range r.texts {
			p.Set(ctx, key, text, 0)
		}
		for key, fields := range r.hashes {
			p.HSet(ctx, key, fields)
		}
		for key, members := range r.sets {
			p.SAdd(ctx, key, members)
		}
		for key, members := range r.scores {
			p.ZAdd(ctx, key, members...)
		}
		for key, left := range r.expire {
			p.PExpire(ctx, key, left)
		}
		return nil
	})
	return err
}

// evict deletes keys of Redis, as a Redis with an allkeys policy does.
func (w *world) evict(oneOf int) {
	c := w.redis()
	defer c.Close()
	keys, err := c.Keys(w.ctx, "*").Result()
	for _, key := range keys {
		if err == nil && chance(w.p.seed, key, oneOf)%uint64(oneOf) == 0 {
			err = c.Del(w.ctx, key).Err()
		}
	}
	w.must(err)
}

// restartServers stops Kafka and Redis of a cluster in order. Kafka keeps its data, Redis loses it.
func (w *world) restartServers() {
	if w.servers == nil {
		w.process("up").restart()
		return
	}
	w.must(w.servers.Close())
	time.Sleep(3 * time.Second)
	w.startServers()
}

// hideStore takes the folder of the store away for a time. A file in its place keeps a new process
// from making a new store there.
func (w *world) hideStore(d time.Duration) {
	if w.bucket != nil {
		w.bucket.trouble(fault{other: "away", lasts: d})
		return
	}
	store := filepath.Join(w.dir, "store")
	if w.p.up {
		store = filepath.Join(w.dir, "data", "store")
	}
	if _, err := os.Stat(store + ".away"); err == nil {
		return // an earlier fault has it
	}
	w.must(errors.Join(os.Rename(store, store+".away"), os.WriteFile(store, nil, 0o600)))
	w.later(d, func() { w.must(errors.Join(os.Remove(store), os.Rename(store+".away", store))) })
}
