package localcloud_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sealpost/sealpost/internal/localcloud"
)

// A local cloud of two of its four parts, a database in it, and the environment for
// whoever is to use it.
func ExampleStart() {
	ctx := context.Background()
	cloud, err := localcloud.Start(ctx, localcloud.Options{Parts: localcloud.Spanner | localcloud.CloudTasks})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cloud.Close()
	database, err := cloud.NewDatabase(ctx, []string{"CREATE TABLE T (Id INT64 NOT NULL) PRIMARY KEY (Id)"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(strings.HasPrefix(database, "projects/sealpost-local/instances/sealpost/databases/db-"))
	if err := cloud.DropDatabase(ctx, database); err != nil {
		fmt.Println(err)
	}
	changes, err := cloud.ApplyTopology(ctx, localcloud.ApplyOptions{})
	fmt.Println(len(changes), "queues made:", err == nil)
	fmt.Println(slices.Sorted(maps.Keys(cloud.Env())))
	// Output:
	// true
	// 17 queues made: true
	// [CLOUD_TASKS_EMULATOR_HOST GOOGLE_CLOUD_PROJECT SPANNER_EMULATOR_HOST]
}
