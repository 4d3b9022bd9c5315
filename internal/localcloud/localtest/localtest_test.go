package localtest_test

import (
	"os"
	"testing"

	pubsubapi "cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	spannerapi "cloud.google.com/go/spanner"

	"github.com/sealpost/sealpost/internal/localcloud/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m) }

var ddl = []string{"CREATE TABLE T (Id INT64 NOT NULL) PRIMARY KEY (Id)"}

func TestDatabasesAreApart(t *testing.T) {
	t.Parallel()
	for range 3 {
		client, err := spannerapi.NewClient(t.Context(), localtest.Database(t, ddl))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		if _, err := client.Apply(t.Context(), []*spannerapi.Mutation{spannerapi.Insert("T", []string{"Id"}, []any{1})}); err != nil {
			t.Error(err)
		}
	}
}

func TestProjectsAreApart(t *testing.T) {
	t.Parallel()
	for range 3 {
		project := localtest.PubSub(t)
		client, err := pubsubapi.NewClient(t.Context(), project)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		if _, err := client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: "projects/" + project + "/topics/same"}); err != nil {
			t.Error(err)
		}
	}
}

func TestVariablesAreSet(t *testing.T) {
	t.Parallel()
	localtest.Spanner(t)
	localtest.CloudTasks(t)
	localtest.SecretManager(t)
	for _, name := range []string{"SPANNER_EMULATOR_HOST", "CLOUD_TASKS_EMULATOR_HOST", "SECRET_MANAGER_EMULATOR_HOST"} {
		if os.Getenv(name) == "" {
			t.Errorf("%s is not set", name)
		}
	}
}
