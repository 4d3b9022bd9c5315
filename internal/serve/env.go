package serve

import "github.com/sethvargo/go-envconfig"

// Lookuper lets envconfig read settings through getenv. An empty variable counts
// as unset.
func Lookuper(getenv func(string) string) envconfig.Lookuper { return lookuper(getenv) }

type lookuper func(string) string

func (l lookuper) Lookup(name string) (string, bool) {
	v := l(name)
	return v, v != ""
}
