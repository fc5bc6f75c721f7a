import java.util.Map;
import java.util.concurrent.CountDownLatch;

import org.opensearch.common.settings.Settings;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;

/**
 * Runs one node from /app. The distribution's own main class wants its whole layout and installs a security manager;
 * the node itself is the same, without the bootstrap checks.
 */
public final class Launcher {
    public static void main(String[] args) throws Exception {
        Settings.Builder settings = Settings.builder()
            .put("path.home", "/app")
            .put("path.data", "/app/data")
            .put("path.logs", "/app/data")
            .put("network.host", "0.0.0.0")
            .put("discovery.type", "single-node");
        System.getenv().forEach((name, value) -> {
            if (name.matches("[a-z0-9_]+(\\.[a-z0-9_]+)+")) {
                settings.put(name, value);
            }
        });
        Node node = new Node(InternalSettingsPreparer.prepareEnvironment(settings.build(), Map.of(), null, () -> "node"));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                node.close();
            } catch (Exception e) {
                e.printStackTrace();
            }
        }));
        node.start();
        new CountDownLatch(1).await(); // the node's threads are daemons; the hook ends this
    }
}
