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

// inheritedNames are the names of our variables that a command gets. All others may be secrets.
var inheritedNames = []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"}

// places are the paths of an attempt as its command sees them.
type places struct{ in, out, checkpoint, champion, event, events string }

func (f folders) places() places {
	return places{f.in(), f.out(), f.checkpoint(), f.champion(), f.event(), f.events()}
}

// contract returns the variables that the contract of a run names.
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

// meet returns the variables by which the workers and servers of a run find each other. A single
// worker gets its own address at the given port, or at a free port if the given port is 0.
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

// meeting returns the variables of one worker or server. Each process sees only its own GPUs, so
// its local rank is 0 of 1. A server has no rank, because with rank 0 it would replace the first
// worker.
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

// tfConfig returns TF_CONFIG, by which TensorFlow finds its own role and the other processes.
func tfConfig(part string, index int, workers, servers []string) string {
	cluster, kind := map[string]any{"worker": workers}, "worker"
	if len(servers) > 0 {
		cluster["ps"] = servers
	}
	if part == Server {
		kind = "ps"
	}
	text, _ := json.Marshal(map[string]any{ // cannot fail for strings and numbers
		"cluster": cluster, "task": map[string]any{"type": kind, "index": index},
	})
	return string(text)
}

// variables returns the environment of a command: inherited variables, the recipe's, the
// machine's and the contract's. Later ones replace earlier ones.
func variables(ours func(string) (string, bool), recipe map[string]string, machine []string, contract map[string]string) map[string]string {
	all := map[string]string{}
	for _, name := range inheritedNames {
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

// pairs returns variables in the form NAME=VALUE.
func pairs(all map[string]string) []string {
	list := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, name+"="+all[name])
	}
	return list
}

// checkVariables refuses variables that no process can be given.
func checkVariables(all map[string]string) error {
	const most = 128 << 10 // largest size of one variable on Linux
	for name, v := range all {
		if strings.ContainsRune(v, 0) || strings.ContainsAny(name, "=\x00") || name == "" {
			return permanent("the variable %q cannot be given to a command: it has a NUL byte", name)
		}
		if len(name)+len(v)+2 > most {
			return permanent("the variable %s has %d bytes, and a command can be given %d: put it into a file", name, len(v), most)
		}
	}
	return nil
}

// The ports are below the range from which kernels assign ports, because a command may listen on
// its port only after a while.
const (
	firstPort = 20000
	ports     = 12000
)

// Places returns free addresses of this machine, at which the workers and servers of a run meet.
// Each run needs its own addresses because several runs may share one machine.
func Places(many int) (all []string, err error) {
	for range many {
		l, err := listenSomewhere()
		if err != nil {
			return nil, fmt.Errorf("find ports for the run's workers: %w", err)
		}
		defer l.Close() // keep all listeners open until the end, so that no port is returned twice
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

// The launcher configures the agent of a pod with these variables. The command does not get them.
const (
	EnvGateway = "TIDEMILL_AGENT_GATEWAY" // URL
	EnvAttempt = "TIDEMILL_AGENT_ATTEMPT" // name of the attempt
	EnvToken   = "TIDEMILL_AGENT_TOKEN"
	EnvNode    = "TIDEMILL_AGENT_NODE"
	EnvPod     = "TIDEMILL_AGENT_POD"
	EnvWork    = "TIDEMILL_AGENT_WORK"    // folder of the attempt
	EnvGrace   = "TIDEMILL_AGENT_GRACE"   // time of the pod between SIGTERM and SIGKILL; empty is 30s
	EnvLinger  = "TIDEMILL_AGENT_LINGER"  // time such as 60s; empty is none
	EnvPart    = "TIDEMILL_AGENT_PART"    // worker or server; empty is worker
	EnvIndex   = "TIDEMILL_AGENT_INDEX"   // number of the worker or server; empty is 0
	EnvWorkers = "TIDEMILL_AGENT_WORKERS" // host:port of each worker, separated by commas; empty means only this worker
	EnvServers = "TIDEMILL_AGENT_SERVERS" // host:port of each server
)

// notTheirs are the prefixes of a pod's variables that do not come from its image: ours, and the
// address of the API server from Kubernetes.
var notTheirs = []string{"TIDEMILL_AGENT_", "KUBERNETES_"}

// insideEnv returns the environment of a command in the agent's own container: the container's
// variables, then the recipe's, the machine's and the contract's.
func (a *attempt) insideEnv(contract map[string]string) (map[string]string, error) {
	env := variables(func(string) (string, bool) { return "", false }, a.order.Plan.Env, a.equipment.Env, contract)
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

// containers returns the variables of the container, except those with a prefix in notTheirs.
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

// isWritable reports whether a file can be created in a folder. In most images the home folder
// belongs to root, but some libraries must write to the home folder.
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
