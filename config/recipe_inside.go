package config

import (
	"path"
	"slices"
	"strings"

	"tidemill.dev"
)

const (
	maxWorkers     = 1000
	maxServers     = 1000
	maxUser        = 1<<31 - 1
	maxPullSecrets = 20
	maxVolumes     = 50
	minShm         = 1 << 20
)

// togetherFields are what a recipe says of those that work on one attempt.
func (j *Job) togetherFields() []field {
	return []field{
		{"workers", func(v value) {
			if n, ok := v.integer(1, maxWorkers); ok && n > 1 {
				j.Workers = n
			}
		}},
		{"servers", j.readServers},
	}
}

func (j *Job) readServers(v value) {
	j.Servers = new(tidemill.Servers)
	given := v.given(
		field{"count", readInteger(&j.Servers.Count, 1, maxServers)},
		field{"command", readCommand(&j.Servers.Command)},
		field{"cpu", readCores(&j.Servers.CPU)},
		field{"memory", readBytes(&j.Servers.Memory, minMemory, maxMemory)},
	)
	v.require(v.node, given, "count", "say how many parameter servers an attempt has")
}

// insideFields are what a recipe says of its container to a cluster.
func (j *Job) insideFields() []field {
	return []field{
		{"user", func(v value) {
			if n, ok := v.integer(0, maxUser); ok {
				j.Inside.User = new(int64(n))
			}
		}},
		{"pullSecrets", j.readPullSecrets},
		{"shm", readBytes(&j.Inside.Shm, minShm, maxMemory)},
		{"volumes", j.readVolumes},
	}
}

// checkInside finds what only an image has.
func (j *Job) checkInside(v value, given map[string]bool) {
	if !given["dir"] || given["image"] {
		return
	}
	for _, f := range j.insideFields() {
		if given[f.key] {
			v.at1(f.key).problem("is for an image, and the recipe has a dir, which runs as it is on this machine; remove it")
		}
	}
}

func (j *Job) readPullSecrets(v value) {
	items := v.items()
	if len(items) > maxPullSecrets {
		v.problem("has more than %d secrets", maxPullSecrets)
		return
	}
	for _, item := range items {
		var name string
		readObject(&name, "Secret", maxResource)(item)
		switch {
		case name == "":
		case slices.Contains(j.Inside.PullSecrets, name):
			item.problem("%s stands twice; keep one", show(name))
		default:
			j.Inside.PullSecrets = append(j.Inside.PullSecrets, name)
		}
	}
}

func (j *Job) readVolumes(v value) {
	items := v.items()
	if len(items) > maxVolumes {
		v.problem("has more than %d volumes", maxVolumes)
		return
	}
	places := map[string]bool{}
	for _, item := range items {
		one := readVolume(item)
		if places[one.At] {
			item.at1("at").problem("%s has another volume already; choose another place", show(one.At))
		}
		if one.At != "" {
			places[one.At] = true
		}
		j.Inside.Volumes = append(j.Inside.Volumes, one)
	}
}

func readVolume(v value) (one tidemill.Volume) {
	given := v.given(
		field{"claim", readObject(&one.Claim, "PersistentVolumeClaim", maxResource)},
		field{"secret", readObject(&one.Secret, "Secret", maxResource)},
		field{"config", readObject(&one.Config, "ConfigMap", maxResource)},
		field{"at", func(v value) { one.At = readMountPlace(v) }},
		field{"readOnly", func(v value) { one.ReadOnly, _ = v.boolean() }},
	)
	kinds := 0
	for _, kind := range []string{"claim", "secret", "config"} {
		if given[kind] {
			kinds++
		}
	}
	switch {
	case kinds > 1:
		v.problem("has more than one of claim, secret and config; keep one")
	case kinds == 0:
		v.require(v.node, given, "claim", "name a PersistentVolumeClaim, or with secret a Secret, or with config a ConfigMap")
	case !given["claim"] && given["readOnly"] && !one.ReadOnly:
		v.at1("readOnly").problem("a Secret or a ConfigMap cannot be written to; remove it")
	}
	v.require(v.node, given, "at", "say where it is mounted, such as /data")
	one.ReadOnly = one.ReadOnly || kinds == 1 && !given["claim"]
	return one
}

// notToMount are folders that are ours, or the kernel's.
var notToMount = []string{"/tidemill", "/proc", "/sys", "/dev"} // read only

func readMountPlace(v value) string {
	at, ok := v.text()
	switch {
	case !ok:
		return ""
	case !path.IsAbs(at) || path.Clean(at) != at || at == "/" || len(at) > maxPath || strings.ContainsAny(at, ":\n\t"):
		v.problem("%s is no folder's absolute path; write it like /data", show(at))
		return ""
	}
	for _, dir := range notToMount {
		if at == dir || strings.HasPrefix(at, dir+"/") {
			v.problem("%s is in %s, which is not the recipe's; choose another place", show(at), dir)
			return ""
		}
	}
	return at
}
