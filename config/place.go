package config

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
)

// Place is what a config cannot know of where it applies. The zero Place is one
// where everything may be named.
type Place struct {
	Namespace string   // of Kubernetes, which the install lies in; empty is none, or not known
	Withheld  Withheld // from runs
}

// Withheld are objects of Kubernetes that no run is given, though its recipe
// names them: those of the install itself. Whoever may write recipes need not be
// one who may read what the install is run with.
type Withheld []string

const (
	secretKind = "secret/"
	claimKind  = "claim/"
)

// ParseWithheld reads secret/NAME and claim/NAME, with commas between. A * at the
// end of a name stands for any rest.
func ParseWithheld(text string) (Withheld, error) {
	var all Withheld
	for one := range strings.SplitSeq(text, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		_, name, _ := strings.Cut(one, "/")
		known := strings.HasPrefix(one, secretKind) || strings.HasPrefix(one, claimKind)
		if begin := strings.TrimSuffix(name, "*"); !known || name == "" || strings.ContainsAny(begin, "*/ ") {
			return nil, fmt.Errorf("%s names nothing that could be withheld from runs; write secret/NAME or claim/NAME, with commas between; a * at the end stands for any rest", show(one))
		}
		all = append(all, one)
	}
	return all, nil
}

// Secret reports whether no run is given a Secret of this name.
func (w Withheld) Secret(name string) bool { return w.has(secretKind + name) }

// Claim reports whether no run is given a PersistentVolumeClaim of this name.
func (w Withheld) Claim(name string) bool { return w.has(claimKind + name) }

func (w Withheld) has(object string) bool {
	if strings.HasSuffix(object, "/") {
		return false // it names none
	}
	for _, one := range w {
		begin, any := strings.CutSuffix(one, "*")
		if object == one || any && strings.HasPrefix(object, begin) {
			return true
		}
	}
	return false
}

// Find is what of all this a run would be given, in words; empty is nothing. The
// pull secrets are not looked at: they are the kubelet's, and no container sees
// them.
func (w Withheld) Find(secrets map[string]string, in tidemill.Inside) string {
	for _, ref := range secrets {
		if name, _, _ := strings.Cut(ref, "/"); w.Secret(name) {
			return "the Secret " + name
		}
	}
	for _, v := range in.Volumes {
		switch {
		case w.Secret(v.Secret):
			return "the Secret " + v.Secret
		case w.Claim(v.Claim):
			return "the PersistentVolumeClaim " + v.Claim
		}
	}
	return ""
}

// ownAlone is behind what no recipe may name.
const ownAlone = "is the install's own, and no run is given it; copy what the run needs into one of its own"

// checkRun finds what the place withholds from runs.
func (p Place) checkRun(run value) {
	if len(p.Withheld) == 0 {
		return
	}
	for _, one := range run.at1("secrets").quiet() {
		if name, _, _ := strings.Cut(one.node.Value, "/"); p.Withheld.Secret(name) {
			one.problem("the Secret %s %s", show(name), ownAlone)
		}
	}
	for _, v := range run.at1("volumes").each() {
		if name := v.at1("secret"); name.node != nil && p.Withheld.Secret(name.node.Value) {
			name.problem("the Secret %s %s", show(name.node.Value), ownAlone)
		}
		if name := v.at1("claim"); name.node != nil && p.Withheld.Claim(name.node.Value) {
			name.problem("the PersistentVolumeClaim %s %s", show(name.node.Value), ownAlone)
		}
	}
}

// checkService finds a Knative Service that the install cannot look for.
func (p Place) checkService(v value) {
	if v.node == nil || p.Namespace == "" {
		return
	}
	namespace, name, both := strings.Cut(v.node.Value, "/")
	if !both || namespace == p.Namespace {
		return
	}
	v.problem("%s lies in another namespace than this install, which is in %s and sees no other; write its url for it, such as http://%s.%s.svc.cluster.local", show(v.node.Value), p.Namespace, name, namespace)
}

// each are the values of a list; none if it is none, which has been reported.
func (v value) each() (all []value) {
	if v.node != nil && v.node.Kind == yaml.SequenceNode {
		all = v.items()
	}
	return all
}
