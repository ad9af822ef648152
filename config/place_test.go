package config

import (
	"path/filepath"
	"strings"
	"testing"

	"tidemill.dev"
)

// placed returns the error of a config in a place.
func placed(t *testing.T, place Place, text string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "c.yaml"), text)
	if _, err := NewReader(filepath.Join(dir, "c.yaml"), place).Load(); err != nil {
		return err.Error()
	}
	return ""
}

// The install's own objects are refused in a recipe, in every place where one can be named.
func TestARecipeNamesNothingOfTheInstalls(t *testing.T) {
	withheld, err := ParseWithheld("secret/tidemill-*, secret/kafka-user,claim/state,secret/sh.helm.release.v1.*")
	if err != nil {
		t.Fatal(err)
	}
	const recipe = "version: 1\nrecipes:\n  r:\n    run:\n      image: i\n      command: [c]\n"
	for said, want := range map[string]string{
		"secrets: {T: tidemill-run-secret/run-secret}":             "c.yaml:7: recipes.r.run.secrets.T: the Secret \"tidemill-run-secret\" belongs to the install",
		"secrets: {T: kafka-user/password}":                        "recipes.r.run.secrets.T: the Secret \"kafka-user\"",
		"secrets: {T: 'sh.helm.release.v1.x.v1/release'}":          "the Secret \"sh.helm.release.v1.x.v1\"",
		"secrets: {A: mine/a, T: kafka-user/password}":             "recipes.r.run.secrets.T: ",
		"volumes: [{secret: tidemill-tokens, at: /x}]":             "recipes.r.run.volumes[0].secret: the Secret \"tidemill-tokens\"",
		"volumes: [{claim: mine, at: /m}, {claim: state, at: /x}]": "recipes.r.run.volumes[1].claim: the PersistentVolumeClaim \"state\"",
		"secrets: {T: kafka-user-2/password}":                      "",
		"secrets: {T: tidemill/key}":                               "",
		"volumes: [{claim: kafka-user, at: /x}]":                   "", // a claim is no Secret
		"volumes: [{config: tidemill-config, at: /x}]":             "", // a ConfigMap contains no secret
		"pullSecrets: [tidemill-registry]":                         "", // no container reads it
		"{}":                                                       "",
	} {
		text := recipe + "      " + said + "\n"
		if said == "{}" {
			text = recipe
		}
		got := placed(t, Place{Withheld: withheld}, text)
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", said, got, want)
		}
		if got := placed(t, Place{}, text); got != "" {
			t.Errorf("%s, where nothing is withheld: %s", said, got)
		}
	}
}

// The settings of a run in the log are checked like those in the file.
func TestFindWhatIsWithheld(t *testing.T) {
	withheld := Withheld{"secret/a", "claim/b*"}
	for want, c := range map[string]struct {
		secrets map[string]string
		volumes []tidemill.Volume
	}{
		"":                              {map[string]string{"X": "b/a"}, []tidemill.Volume{{Secret: "b"}, {Claim: "a"}, {Config: "a"}}},
		"the Secret a":                  {map[string]string{"X": "a/b", "Y": "c/d"}, nil},
		"the PersistentVolumeClaim b-1": {nil, []tidemill.Volume{{Config: "a"}, {Claim: "b-1"}}},
	} {
		if got := withheld.Find(c.secrets, tidemill.Inside{Volumes: c.volumes}); got != want {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
	}
	if got := withheld.Find(map[string]string{"X": "a"}, tidemill.Inside{}); got != "the Secret a" {
		t.Errorf("without a key: %q", got)
	}
	all := Withheld{"secret/*"}
	if got := all.Find(nil, tidemill.Inside{Volumes: []tidemill.Volume{{Config: "a"}, {Claim: "b"}}}); got != "" {
		t.Errorf("without a Secret: %q", got)
	}
	if got := all.Find(nil, tidemill.Inside{Volumes: []tidemill.Volume{{Secret: "z"}}}); got != "the Secret z" {
		t.Errorf("of all Secrets: %q", got)
	}
}

func TestParseWithheld(t *testing.T) {
	for text, good := range map[string]bool{"": true, "secret/a": true, " secret/a* , claim/b,": true, "secret/*": true, "a": false,
		"secret/": false, "secrets/a": false, "configmap/a": false, "secret/a*b": false, "secret/a/b": false, "secret/**": false, "secret/a b": false} {
		if w, err := ParseWithheld(text); (err == nil) != good {
			t.Errorf("%q: %q, %v", text, w, err)
		}
	}
}

// A service in a namespace that the install cannot read is refused, with advice.
func TestAServiceOfAnotherNamespace(t *testing.T) {
	for service, refused := range map[string]bool{"prices": false, "ml/prices": false, "shop/prices": true} {
		text := "version: 1\ntriggers:\n  t:\n    when: {type: a}\n    to: {service: " + service + "}\n"
		got := placed(t, Place{Namespace: "ml"}, text)
		if want := `c.yaml:5: triggers.t.to.service: "shop/prices" is in another namespace`; refused != strings.Contains(got, want) ||
			refused != strings.Contains(got, "http://prices.shop.svc.cluster.local") || !refused && got != "" {
			t.Errorf("%s: %q", service, got)
		}
		if got := placed(t, Place{}, text); got != "" {
			t.Errorf("%s, in no namespace: %s", service, got)
		}
	}
	if got := placed(t, Place{Namespace: "ml"}, "version: 1\ntriggers:\n  t:\n    when: {type: a}\n    to: {url: 'http://a.example'}\n"); got != "" {
		t.Error(got)
	}
}
