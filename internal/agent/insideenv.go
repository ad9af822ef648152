package agent

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
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
