//go:build slow

package charts_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"tidemill.dev/config"
)

// Each process withholds from runs every rendered Secret, and every Secret or claim that a rendered
// object names. So the template cannot forget an object that holds one of our credentials.
func TestNoRunIsGivenWhatIsOurs(t *testing.T) {
	for name := range valuesFiles(t) {
		all := rendered(t, name)
		withheld := withheldBy(t, name, all)
		named := map[string]bool{"secret/sh.helm.release.v1.tidemill.v7": true, "secret/tidemill-attempt-3qv7-1": true, "secret/tidemill-controller-token-x2f": name != "everything" && name != "secrets"}
		for _, s := range objectsOf[*corev1.Secret](all) {
			named["secret/"+s.Name] = true
		}
		for _, o := range all {
			var tree any
			if text, err := json.Marshal(o); err != nil || json.Unmarshal(text, &tree) != nil {
				t.Fatal(err)
			}
			namedIn("", tree, named)
		}
		if len(named) < 3 {
			t.Errorf("%s: only %v is named", name, named)
		}
		for object, is := range named {
			kind, of, _ := strings.Cut(object, "/")
			if is && (kind == "secret" && !withheld.Secret(of) || kind == "claim" && !withheld.Claim(of)) {
				t.Errorf("%s: a recipe may name %s; withheld is %q", name, object, withheld)
			}
		}
		if withheld.Secret("hugging-face") || withheld.Claim("datasets") {
			t.Errorf("%s: a recipe may not name its own; withheld is %q", name, withheld)
		}
	}
}

// withheldBy returns the list of withheld objects, which is the same for all processes.
func withheldBy(t *testing.T, name string, all []any) (withheld config.Withheld) {
	t.Helper()
	for pod, spec := range podsOf(all) {
		args := spec.Containers[0].Args
		if !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--kafka=") }) {
			continue // not a process of ours that reads the config
		}
		at := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "--withhold=") })
		if at < 0 || !slices.Contains(args, "--namespace=ml") {
			t.Fatalf("%s: %s is told of no place: %q", name, pod, args)
		}
		said, err := config.ParseWithheld(strings.TrimPrefix(args[at], "--withhold="))
		if err != nil || withheld != nil && !slices.Equal(said, withheld) {
			t.Fatalf("%s: %s is told %q, others %q: %v", name, pod, said, withheld, err)
		}
		withheld = said
	}
	return withheld
}

// namedIn finds the names in a tree of JSON, by any key that contains "secret". It does not know
// which keys matter to Kubernetes, so it finds more names than the template.
func namedIn(key string, tree any, named map[string]bool) {
	switch v := tree.(type) {
	case []any:
		for _, one := range v {
			if text, ok := one.(string); ok {
				namedIn(key, text, named)
				continue
			}
			namedIn(key, one, named)
		}
	case map[string]any:
		for k, one := range v {
			namedIn(k, one, named)
			name, ok := one.(string)
			switch speaks := strings.Contains(strings.ToLower(key), "secret"); {
			case ok && k == "name" && speaks:
				named["secret/"+name] = true
			case ok && k == "secretName":
				named["secret/"+name] = true
			case ok && k == "claimName":
				named["claim/"+name] = true
			}
		}
	}
}

// Helm refuses the same configs as the processes, before anything is installed.
func TestARecipeThatNamesWhatIsOurs(t *testing.T) {
	for set, want := range map[string]string{
		"secrets.T=tidemill-run-secret/run-secret":           "the recipe r names secret/tidemill-run-secret",
		"secrets.T=sh.helm.release.v1.tidemill.v1/release":   "secret/sh.helm.release.v1.tidemill.v1",
		"volumes[0].secret=tidemill-access,volumes[0].at=/x": "secret/tidemill-access",
		"volumes[0].claim=tidemill-data,volumes[0].at=/x":    "claim/tidemill-data",
		"secrets.T=store/AWS_SECRET_ACCESS_KEY":              "secret/store",
		"secrets.T=theirs-1/x":                               "secret/theirs-1",
		"secrets.T=hugging-face/token":                       "",
		"volumes[0].claim=datasets,volumes[0].at=/x":         "",
		"volumes[0].config=tidemill-config,volumes[0].at=/x": "",
	} {
		t.Run(set, func(t *testing.T) {
			t.Parallel()
			set := "config.recipes.r.run." + strings.ReplaceAll(set, ",volumes", ",config.recipes.r.run.volumes")
			out, errs, err := runHelm(t, "template", "tidemill", chart, "--kube-version", kube, "-f", "testdata/minimal.values.yaml", "--set", set,
				"--set", "config.recipes.r.run.image=i,config.recipes.r.run.command[0]=c,store.secret=store,withhold[0]=secret/theirs-*")
			if (err == nil) != (want == "") || !strings.Contains(errs, want) {
				t.Errorf("%v, want %q:\n%s%d bytes", err, want, errs, len(out))
			}
		})
	}
}
