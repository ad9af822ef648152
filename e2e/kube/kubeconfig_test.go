//go:build cluster

package kube

import (
	"encoding/base64"
	"fmt"
	"os"

	"go.yaml.in/yaml/v3"
	"k8s.io/client-go/rest"
)

// kubeconfig is the part of a kubeconfig that the test needs. client-go's package for kubeconfigs
// needs modules that the test does not use otherwise.
type kubeconfig struct {
	Current  string `yaml:"current-context"`
	Contexts []struct {
		Name    string `yaml:"name"`
		Context struct {
			Cluster string `yaml:"cluster"`
			User    string `yaml:"user"`
		} `yaml:"context"`
	} `yaml:"contexts"`
	Clusters []struct {
		Name    string `yaml:"name"`
		Cluster struct {
			Server string     `yaml:"server"`
			CAFile string     `yaml:"certificate-authority"`
			CA     base64Data `yaml:"certificate-authority-data"`
			Named  string     `yaml:"tls-server-name"`
		} `yaml:"cluster"`
	} `yaml:"clusters"`
	Users []struct {
		Name string `yaml:"name"`
		User struct {
			CertFile string     `yaml:"client-certificate"`
			Cert     base64Data `yaml:"client-certificate-data"`
			KeyFile  string     `yaml:"client-key"`
			Key      base64Data `yaml:"client-key-data"`
			Token    string     `yaml:"token"`
		} `yaml:"user"`
	} `yaml:"users"`
}

// readKubeconfig reads the address and credentials of the current context's API server.
func readKubeconfig(path string) (*rest.Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	var k kubeconfig
	if err := yaml.Unmarshal(text, &k); err != nil {
		return nil, fmt.Errorf("read the kubeconfig %s: %w", path, err)
	}
	c := &rest.Config{}
	for _, context := range k.Contexts {
		if context.Name == k.Current {
			k.fill(c, context.Context.Cluster, context.Context.User)
		}
	}
	if c.Host == "" {
		return nil, fmt.Errorf("read the kubeconfig %s: its current context %q names no server", path, k.Current)
	}
	return c, nil
}

func (k *kubeconfig) fill(c *rest.Config, cluster, user string) {
	for _, of := range k.Clusters {
		if of.Name == cluster {
			c.Host, c.TLSClientConfig.CAFile, c.CAData, c.ServerName = of.Cluster.Server, of.Cluster.CAFile, of.Cluster.CA, of.Cluster.Named
		}
	}
	for _, of := range k.Users {
		if u := of.User; of.Name == user {
			c.CertFile, c.CertData, c.KeyFile, c.KeyData, c.BearerToken = u.CertFile, u.Cert, u.KeyFile, u.Key, u.Token
		}
	}
}

// base64Data is base64 in the file.
type base64Data []byte

// UnmarshalText decodes base64.
func (b *base64Data) UnmarshalText(text []byte) (err error) {
	*b, err = base64.StdEncoding.DecodeString(string(text))
	return err
}
