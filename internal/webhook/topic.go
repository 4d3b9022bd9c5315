package webhook

import (
	"fmt"
	"net/url"
	"strings"
)

// TopicScheme begins the URL of an endpoint that is a Pub/Sub topic of the same
// project.
const TopicScheme = "pubsub://"

// reservedTopics begins the names of Sealpost's own topics: an endpoint there could
// forge what the receivers publish, or feed its own events back.
const reservedTopics = "sealpost-"

// Topic is the topic that the endpoint's URL names; ok is false for all other URLs.
func (e *Endpoint) Topic() (name string, ok bool) {
	if len(e.URL) < len(TopicScheme) || !strings.EqualFold(e.URL[:len(TopicScheme)], TopicScheme) {
		return "", false
	}
	return e.URL[len(TopicScheme):], true
}

// ValidTopic reports why name cannot be the topic of an endpoint. A topic's name has
// 3–255 characters, the first a letter, the others letters, digits or -_.~+%, and
// does not begin with "goog" (https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names);
// those that begin with "sealpost-" are Sealpost's own.
func ValidTopic(name string) error {
	if len(name) < 3 || len(name) > 255 {
		return fmt.Errorf("topic name has %d characters, 3 to 255 are allowed", len(name))
	}
	for i := range len(name) {
		c := name[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || (c < '0' || c > '9') && strings.IndexByte("-_.~+%", c) < 0) {
			return fmt.Errorf("topic name %q: character %d is not a letter, digit or one of -_.~+%% (the first must be a letter)", name, i+1)
		}
	}
	// The publisher's library asks for the name as it is; a server may unescape it.
	for _, n := range []string{name, unescaped(name)} {
		if lower := strings.ToLower(n); strings.HasPrefix(lower, "goog") || strings.HasPrefix(lower, reservedTopics) {
			return fmt.Errorf("topic name %q: names that begin with goog or %s are taken", name, reservedTopics)
		}
	}
	return nil
}

func unescaped(name string) string {
	s, err := url.PathUnescape(name)
	if err != nil {
		return name
	}
	return s
}
