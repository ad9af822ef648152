package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"tidemill.dev/internal/api"
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
func contract(o *api.Order, p places, port int) map[string]string {
	at := strconv.Itoa(port)
	return map[string]string{
		"TIDEMILL_RUN": o.Run, "TIDEMILL_RECIPE": o.Recipe, "TIDEMILL_KEY": o.Key, "TIDEMILL_ATTEMPT": strconv.Itoa(o.Attempt),
		"TIDEMILL_IN": p.in, "TIDEMILL_OUT": p.out, "TIDEMILL_CHECKPOINT": p.checkpoint, "TIDEMILL_CHAMPION": p.champion,
		"TIDEMILL_EVENT": p.event, "TIDEMILL_EVENTS": p.events,
		"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": localhost, "MASTER_PORT": at,
		"TF_CONFIG": tfConfig(at),
	}
}

const localhost = "127.0.0.1"

// tfConfig is how TensorFlow is told that it is alone.
func tfConfig(port string) string {
	text, _ := json.Marshal(map[string]any{ // of strings and numbers, it cannot fail
		"cluster": map[string]any{"worker": []string{localhost + ":" + port}},
		"task":    map[string]any{"type": "worker", "index": 0},
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

// freePort is one that nobody listens on now, for the workers of a run to meet
// at. Each run gets its own: several are on one machine.
func freePort() (int, error) {
	l, err := net.Listen("tcp", localhost+":0")
	if err != nil {
		return 0, fmt.Errorf("find a port for the run's workers: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
