// A service that builds 400 MB of objects for each batch, drops them, and collects garbage between batches.
//
// java Batches BATCHES
class Batches {
    static volatile long sum;

    static void work() {
        byte[][] kept = new byte[100_000][];
        for (int at = 0; at < kept.length; at++) {
            kept[at] = new byte[4096];
            kept[at][at % 4096] = 1;
        }
        for (byte[] one : kept) {
            sum += one[0];
        }
    }

    public static void main(String[] words) {
        for (int batch = 0; batch < Integer.parseInt(words[0]); batch++) {
            work();
            System.gc();
        }
    }
}
