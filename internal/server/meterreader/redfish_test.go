package meterreader

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
)

// controller serves the resources of a management controller. Names of resources and
// properties are those of DMTF's DSP0268 (Chassis v1.23, EnvironmentMetrics v1.3, Power
// v1.7); the values are invented.
func controller(t *testing.T, resources map[string]any) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, pass, _ := r.BasicAuth(); r.URL.Path != "/redfish/v1/" && user+pass != "metepass" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		v, ok := resources[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(v); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

type object = map[string]any

func at(id string) object { return object{"@odata.id": id} }

func TestRedfish(t *testing.T) {
	const root = "/redfish/v1/"
	url := controller(t, map[string]any{
		root: object{"@odata.id": root, "@odata.type": "#ServiceRoot.v1_15_0.ServiceRoot", "Id": "RootService", "Name": "Root",
			"RedfishVersion": "1.18.0", "Chassis": at(root + "Chassis"), "Links": object{"Sessions": at(root + "SessionService/Sessions")}},
		root + "Chassis": object{"@odata.id": root + "Chassis", "@odata.type": "#ChassisCollection.ChassisCollection", "Name": "Chassis",
			"Members@odata.count": 3, "Members": []object{at(root + "Chassis/Rack"), at(root + "Chassis/New"), at(root + "Chassis/Old")}},
		root + "Chassis/Rack": object{"@odata.id": root + "Chassis/Rack", "@odata.type": "#Chassis.v1_23_0.Chassis", "Id": "Rack", "Name": "Rack", "ChassisType": "Rack"},
		root + "Chassis/New": object{"@odata.id": root + "Chassis/New", "@odata.type": "#Chassis.v1_23_0.Chassis", "Id": "New", "Name": "Server", "ChassisType": "RackMount",
			"EnvironmentMetrics": at(root + "Chassis/New/EnvironmentMetrics")},
		root + "Chassis/New/EnvironmentMetrics": object{"@odata.id": root + "Chassis/New/EnvironmentMetrics", "@odata.type": "#EnvironmentMetrics.v1_3_0.EnvironmentMetrics",
			"Id": "EnvironmentMetrics", "Name": "Metrics", "PowerWatts": object{"DataSourceUri": root + "Chassis/New/Sensors/Power", "Reading": 374.2},
			"EnergykWh": object{"DataSourceUri": root + "Chassis/New/Sensors/Energy", "Reading": 325.675}},
		root + "Chassis/Old": object{"@odata.id": root + "Chassis/Old", "@odata.type": "#Chassis.v1_5_0.Chassis", "Id": "Old", "Name": "Server", "ChassisType": "RackMount",
			"Power": at(root + "Chassis/Old/Power")},
		root + "Chassis/Old/Power": object{"@odata.id": root + "Chassis/Old/Power", "@odata.type": "#Power.v1_7_0.Power", "Id": "Power", "Name": "Power",
			"PowerControl": []object{{"@odata.id": root + "Chassis/Old/Power#/PowerControl/0", "MemberId": "0", "Name": "System", "PowerConsumedWatts": 344}}},
	})
	as := func(keys ...string) []string {
		return append([]string{"type: redfish", "url: " + url, "user: mete", "password: pass"}, keys...)
	}
	checkRead(t, "chassis New, Old have power: name one", as("unit: W")...)
	checkRead(t, 374200000, as("unit: W", "chassis: New")...)
	checkRead(t, 1172430000000000, as("unit: kWh")...)
	checkRead(t, 344000000, as("unit: W", "chassis: Old")...)
	checkRead(t, `chassis "Old" has no energy`, as("unit: kWh", "chassis: Old")...)
	checkRead(t, `chassis "Other": not found`, as("unit: W", "chassis: Other")...)
	checkRead(t, "401", "type: redfish", "url: "+url, "user: mete", "password: wrong", "unit: W")
	checkRead(t, "refused", "type: redfish", "url: http://127.0.0.1:1", "unit: W")

	// The second reading uses the chassis found by the first.
	s, err := open(spec(t, as("unit: W", "chassis: New")...))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if v, err := s.(*poller).Read(t.Context()); err != nil || v != 374200000 {
			t.Errorf("%d, %v", v, err)
		}
	}
}
