package deliver

import "strings"

// secrets are texts of ours that a subscriber knows and that nobody else shall
// read.
type secrets []string

// blot takes them out of what others wrote.
func (s secrets) blot(text string) string {
	for _, secret := range s {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "[secret]")
		}
	}
	return text
}

// trim takes off an end that may be the beginning of a secret, where a text was
// cut or has broken off.
func (s secrets) trim(text string) string {
	for _, secret := range s {
		for n := min(len(secret), len(text)); n > 0; n-- {
			if strings.HasSuffix(text, secret[:n]) {
				text = text[:len(text)-n]
				break
			}
		}
	}
	return text
}
