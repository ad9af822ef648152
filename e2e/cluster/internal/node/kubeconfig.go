package node

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"
)

// user is a client of the API server, with the groups that give it rights.
type user struct {
	file   string
	name   string
	groups []string
}

func (n Node) users() []user {
	return []user{
		{"admin", "tidemill-admin", []string{"system:masters"}},
		{"kubelet", "system:node:" + n.Name, []string{"system:nodes"}},
		{"controllers", "system:kube-controller-manager", nil},
		{"scheduler", "system:kube-scheduler", nil},
		{"proxy", "system:kube-proxy", nil},
		{"coredns", "system:coredns", nil},
	}
}

func (n Node) writeKubeconfig(ca *authority, u user, now time.Time) error {
	id, err := ca.client(now, u.name, u.groups...)
	if err != nil {
		return err
	}
	data, err := kubeconfig(n.Name, n.url(), ca.pem, u.name, id)
	if err != nil {
		return err
	}
	return n.files(map[string][]byte{u.file + ".kubeconfig": data})
}

func (n Node) url() string { return fmt.Sprintf("https://%s:6443", n.Address) }

// kubeconfig is in JSON, which is YAML too.
func kubeconfig(cluster, url string, ca []byte, name string, id identity) ([]byte, error) {
	type object = map[string]any
	data, err := json.MarshalIndent(object{
		"apiVersion":      "v1",
		"kind":            "Config",
		"current-context": cluster,
		"clusters": []object{{"name": cluster, "cluster": object{
			"server": url, "certificate-authority-data": base64.StdEncoding.EncodeToString(ca)}}},
		"contexts": []object{{"name": cluster, "context": object{"cluster": cluster, "user": name}}},
		"users": []object{{"name": name, "user": object{
			"client-certificate-data": base64.StdEncoding.EncodeToString(id.certificate),
			"client-key-data":         base64.StdEncoding.EncodeToString(id.key)}}},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write a kubeconfig for %s: %w", name, err)
	}
	return append(data, '\n'), nil
}
