package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"tidemill.dev/api"
)

// inherited are the variables of ours that a command gets. All others may be
// secrets of ours.
var inherited = []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"}

// places are the folders and files of an attempt as its command sees them.
type places struct{ in, out, checkpoint, champion, event, events string }

func (f folders) places() places {
	return places{f.in(), f.out(), f.checkpoint(), f.champion(), f.event(), f.events()}
}

// contract are the variables that the contract of a run names.
func contract(o *api.Order, p places, meet map[string]string) map[string]string {
	all := map[string]string{
		"TIDEMILL_RUN": o.Run, "TIDEMILL_RECIPE": o.Recipe, "TIDEMILL_KEY": o.Key, "TIDEMILL_ATTEMPT": strconv.Itoa(o.Attempt),
		"TIDEMILL_IN": p.in, "TIDEMILL_OUT": p.out, "TIDEMILL_CHECKPOINT": p.checkpoint, "TIDEMILL_CHAMPION": p.champion,
		"TIDEMILL_EVENT": p.event, "TIDEMILL_EVENTS": p.events,
	}
	maps.Copy(all, meet)
	return all
}

const localhost = "127.0.0.1"

// meet are the variables by which those that work together find each other. One
// that is alone meets itself at a port, a free one if it is 0.
func (a *attempt) meet(port int) (map[string]string, error) {
	p, workers := &a.party, a.party.workers
	switch {
	case len(workers) > 0:
	case port > 0:
		workers = []string{net.JoinHostPort(localhost, strconv.Itoa(port))}
	default:
		var err error
		if workers, err = Places(1); err != nil {
			return nil, err
		}
	}
	return meeting(p.part, p.index, workers, p.servers)
}

// meeting is what one of them is told. Each has cards of its own and sees no
// others', so it is the only one of its place. A server has no rank: one that
// joined the workers as rank 0 would take the place of the first.
func meeting(part string, index int, workers, servers []string) (map[string]string, error) {
	host, port, err := master(workers)
	if err != nil {
		return nil, err
	}
	all := map[string]string{"WORLD_SIZE": strconv.Itoa(len(workers)), "MASTER_ADDR": host, "MASTER_PORT": port,
		"TF_CONFIG": tfConfig(part, index, workers, servers)}
	if part == Server {
		all["TIDEMILL_ROLE"] = Server
		return all, nil
	}
	all["RANK"], all["LOCAL_RANK"], all["LOCAL_WORLD_SIZE"] = strconv.Itoa(index), "0", "1"
	if len(workers)+len(servers) > 1 {
		all["TIDEMILL_ROLE"] = Worker
	}
	return all, nil
}

// tfConfig is how TensorFlow is told who it is, and who the others are.
func tfConfig(part string, index int, workers, servers []string) string {
	cluster, kind := map[string]any{"worker": workers}, "worker"
	if len(servers) > 0 {
		cluster["ps"] = servers
	}
	if part == Server {
		kind = "ps"
	}
	text, _ := json.Marshal(map[string]any{ // of strings and numbers, it cannot fail
		"cluster": cluster, "task": map[string]any{"type": kind, "index": index},
	})
	return string(text)
}

// variables are all that a command gets: ours that it needs, the recipe's, the
// machine's, and the contract's, the later over the earlier.
func variables(ours func(string) (string, bool), recipe map[string]string, machine []string, contract map[string]string) map[string]string {
	all := map[string]string{}
	for _, name := range inherited {
		if v, ok := ours(name); ok {
			all[name] = v
		}
	}
	maps.Copy(all, recipe)
	for _, pair := range machine {
		if name, v, ok := strings.Cut(pair, "="); ok {
			all[name] = v
		}
	}
	maps.Copy(all, contract)
	return all
}

// pairs are variables as a process gets them.
func pairs(all map[string]string) []string {
	list := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, name+"="+all[name])
	}
	return list
}

// check finds what no process can be given.
func checkVariables(all map[string]string) error {
	const most = 128 << 10 // of one, on Linux
	for name, v := range all {
		if strings.ContainsRune(v, 0) || strings.ContainsAny(name, "=\x00") || name == "" {
			return permanent("the variable %q cannot be given to a command: it has a letter that ends texts", name)
		}
		if len(name)+len(v)+2 > most {
			return permanent("the variable %s has %d bytes, and a command can be given %d: put it into a file", name, len(v), most)
		}
	}
	return nil
}

// Ports below those that kernels give to whoever asks for any: it takes a command
// a while until it listens.
const (
	firstPort = 20000
	ports     = 12000
)

// Places are addresses of this machine where nobody listens now, for the workers
// and servers of a run to meet at. Each run gets its own: several are on one machine.
func Places(many int) (all []string, err error) {
	for range many {
		l, err := listenSomewhere()
		if err != nil {
			return nil, fmt.Errorf("find ports for the run's workers: %w", err)
		}
		defer l.Close() // all at once, so that none is found twice
		all = append(all, l.Addr().String())
	}
	return all, nil
}

func listenSomewhere() (l net.Listener, err error) {
	for range 100 {
		port := firstPort + rand.IntN(ports)
		if l, err = net.Listen("tcp", net.JoinHostPort(localhost, strconv.Itoa(port))); err == nil {
			break
		}
	}
	return l, err
}

// The variables by which an agent in a pod is told what the launcher knows. None
// of them reaches the command.
const (
	EnvGateway = "TIDEMILL_AGENT_GATEWAY" // URL
	EnvAttempt = "TIDEMILL_AGENT_ATTEMPT" // its name
	EnvToken   = "TIDEMILL_AGENT_TOKEN"
	EnvNode    = "TIDEMILL_AGENT_NODE"
	EnvPod     = "TIDEMILL_AGENT_POD"
	EnvWork    = "TIDEMILL_AGENT_WORK"    // the folder of the attempt
	EnvGrace   = "TIDEMILL_AGENT_GRACE"   // a duration: what the pod has between SIGTERM and SIGKILL; empty is 30s
	EnvLinger  = "TIDEMILL_AGENT_LINGER"  // a duration, such as 60s; empty is not at all
	EnvPart    = "TIDEMILL_AGENT_PART"    // worker or server; empty is worker
	EnvIndex   = "TIDEMILL_AGENT_INDEX"   // of the worker or server; empty is 0
	EnvWorkers = "TIDEMILL_AGENT_WORKERS" // host:port of each, with commas; empty is this one alone
	EnvServers = "TIDEMILL_AGENT_SERVERS" // as well
)

// notTheirs begin the variables of a pod that are not its image's: ours, and
// those by which Kubernetes tells of its API server.
var notTheirs = []string{"TIDEMILL_AGENT_", "KUBERNETES_"}

// insideEnv are the variables of a command in the container that we are in: the
// container's, then the recipe's, the machine's and the contract's.
func (a *attempt) insideEnv(contract map[string]string) (map[string]string, error) {
	env := variables(func(string) (string, bool) { return "", false }, a.order.Plan.Env, a.gear.Env, contract)
	all := containers(os.Environ())
	maps.Copy(all, env)
	if isWritable(all["HOME"]) {
		return all, nil
	}
	home := filepath.Join(a.dirs.work, "home")
	if err := os.MkdirAll(home, 0o700); err != nil {
		return nil, err
	}
	all["HOME"] = home
	return all, nil
}

// containers are the variables that a container has for its command.
func containers(ours []string) map[string]string {
	all := map[string]string{}
	for _, pair := range ours {
		name, v, _ := strings.Cut(pair, "=")
		if !isNotTheirs(name) {
			all[name] = v
		}
	}
	return all
}

func isNotTheirs(name string) bool {
	for _, begin := range notTheirs {
		if strings.HasPrefix(name, begin) {
			return true
		}
	}
	return false
}

// isWritable reports whether something can be written into a folder. Most images
// have a home that is root's, and libraries that keep something there.
func isWritable(dir string) bool {
	if dir == "" {
		return false
	}
	f, err := os.CreateTemp(dir, ".tidemill-*")
	if err != nil {
		return false
	}
	_ = f.Close()
	return os.Remove(f.Name()) == nil
}
